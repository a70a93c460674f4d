// delta_units_sm90.cpp: the delta rule for prefill rows as profile sm90's matrix units compute it. Contract and names:
// core/numerics/delta_order.h; q and k hold bf16 values.
#include "backends/cpu/kernels/delta_units.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

struct Sm90 {
  static constexpr int kMin = num::kBf16MinExponent;  // tf32's too
  static constexpr num::MatrixOrder kOrder = num::kSm90Order;
  static void round_keys(float*, int) {}
};
constexpr num::MatrixOrder kTf32 = num::kSm90Tf32Order;
constexpr auto mma_tf32 = unit_mma<kTf32.group, kTf32.fraction_bits, Sm90::kMin>;

void round_to_bf16(Right<Sm90::kMin>& side) {
  rounding_kernels().bf16(side.values, std::int64_t{side.rows} * kPanel);
  side.finish();
}

// Of tf32. The chains see a value's upper half only, so one that has nothing there is not ordinary.
template <class Side>
void finish_tf32(Side& side, int count) {
  std::uint32_t others = 0;
  for (int i = 0; i < count; ++i) {
    side.values[i] = num::delta_tf32(side.values[i]);
    const std::uint32_t size = num::bit_cast<std::uint32_t>(side.values[i]) & 0x7FFFFFFFu;
    others |= size - 1 < 0xFFFFu ? 1u : 0u;
  }
  side.finish();
  side.ordinary = side.ordinary && others == 0;
}

class Chunk : public DeltaChunk<Sm90> {
 public:
  Chunk(const DeltaTask& task, int first, int count) : DeltaChunk(task, first, count) {
    prepare();
    round_factors();
  }
  void panel(int p) {
    const int dim = t.key_dim, at = p * kPanel;
    float* const s = t.s + std::int64_t{at} * dim;
    std::memcpy(state_.values, s, static_cast<std::size_t>(dim) * kPanel * sizeof(float));
    round_to_bf16(state_);
    clear(p_, kTile * kPanel);
    clear(q_, kTile * kPanel);
    mma(keys_, state_, 0, kTile, p_);
    mma(queries_, state_, 0, rows, q_);

    for (int i = 0; i < kTile; ++i) {
      const F32x16 grown = set1(grown_[i]);
      store(r_.values + i * kPanel, fma(negative(grown), load(p_ + i * kPanel), values_of(i, at)));
      store(q_ + i * kPanel, mul(grown, load(q_ + i * kPanel)));
    }
    finish_tf32(r_, kTile * kPanel);
    float* const u = p_;
    clear(u, kTile * kPanel);
    mma_tf32(a_, r_, 0, kTile, u);

    for (int j = 0; j < kTile; ++j) {
      const F32x16 x = load(u + j * kPanel);
      store(u_.values + j * kPanel, x);
      store(decayed_.values + j * kPanel, mul(set1(rest_[j]), x));
    }
    round_to_bf16(u_);
    round_to_bf16(decayed_);
    mma(m_, u_, 0, rows, q_);
    for (int i = 0; i < rows; ++i) store_output(i, at, load(q_ + i * kPanel));
    for (int x = 0; x < dim; ++x) store(s + x * kPanel, mul(set1(last_), load(s + x * kPanel)));
    mma(columns_, decayed_, 0, dim, s);
  }

 private:
  void round_factors() {
    for (int j0 = 0; j0 < kTile; j0 += kPanel) {
      const F32x16 beta = load(beta_ + j0);
      for (int i = 0; i < kTile; ++i) {
        const F32x16 a = mul(load(inverse_ + in_panels(i, j0)), beta);
        store(a_.values + i * kTile + j0, first_of(a, i - j0 + 1, zero()));
      }
    }
    rounding_kernels().bf16(m_.values, kTile * kTile);
    finish_tf32(a_, kTile * kTile);
    m_.finish();
  }
};

}  // namespace

void delta_units_sm90(const DeltaTask& t) {
  delta_by_chunks<Chunk>(t);
}

}  // namespace nibble::cpu::NIBBLE_ISA
