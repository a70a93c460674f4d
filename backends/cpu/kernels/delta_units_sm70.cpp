// delta_units_sm70.cpp: the delta rule for prefill rows as profile sm70's matrix units compute it. Contract and names:
// core/numerics/delta_order.h; q and k are such that f16 holds them, or are rounded to it here.
#include "backends/cpu/kernels/delta_units.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

// Columns of a panel by powers of two of their own.
struct Powers {
  alignas(64) float down[kPanel];  // 2^-e
  alignas(64) float up[kPanel];    // 2^e

  void measure(const float* panel, int rows) { rounding_kernels().column_powers(panel, rows, down, up); }
};

void round_to_f16(float* values, int count) {
  static constexpr float kOnes[kPanel] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  rounding_kernels().f16_columns(values, count / kPanel, kOnes);
}

struct Sm70 {
  static constexpr int kMin = num::kF16MinExponent;
  static constexpr num::MatrixOrder kOrder = num::kSm70Order;
  static void round_keys(float* values, int count) { round_to_f16(values, count); }
};

void finish(Right<Sm70::kMin>& side, const Powers& by) {
  rounding_kernels().f16_columns(side.values, side.rows, by.down);
  side.finish();
}

class Chunk : public DeltaChunk<Sm70> {
 public:
  Chunk(const DeltaTask& task, int first, int count) : DeltaChunk(task, first, count) {
    assert(t.key_dim <= 2 * kTile && q_ == p_ + kTile * kPanel);
    prepare();
    round_factors();
  }
  void panel(int p) {
    const int dim = t.key_dim, at = p * kPanel;
    float* const s = t.s + std::int64_t{at} * dim;
    Powers of_s, of_r, of_u;
    std::memcpy(state_.values, s, static_cast<std::size_t>(dim) * kPanel * sizeof(float));
    of_s.measure(state_.values, dim);
    finish(state_, of_s);
    clear(p_, kTile * kPanel);
    clear(q_, kTile * kPanel);
    mma(keys_, state_, 0, kTile, p_);
    mma(queries_, state_, 0, rows, q_);

    const F32x16 up_s = load(of_s.up);
    for (int i = 0; i < kTile; ++i) {
      const F32x16 grown = set1(grown_[i]), p_i = mul(load(p_ + i * kPanel), up_s);
      store(r_.values + i * kPanel, mul(set1(beta_[i]), fma(negative(grown), p_i, values_of(i, at))));
      store(q_ + i * kPanel, mul(grown, mul(load(q_ + i * kPanel), up_s)));
    }
    of_r.measure(r_.values, kTile);
    finish(r_, of_r);
    clear(p_, kTile * kPanel);
    mma(a_, r_, 0, kTile, p_);

    for (int j = 0; j < kTile; ++j) {
      const F32x16 u = mul(load(p_ + j * kPanel), load(of_r.up));
      store(u_.values + j * kPanel, u);
      store(decayed_.values + j * kPanel, mul(set1(rest_[j]), u));
    }
    of_u.measure(u_.values, kTile);
    finish(u_, of_u);
    finish(decayed_, of_u);
    clear(p_, kTile * kPanel);
    mma(m_, u_, 0, rows, p_);
    const F32x16 up_u = load(of_u.up);
    for (int i = 0; i < rows; ++i) store_output(i, at, fma(up_u, load(p_ + i * kPanel), load(q_ + i * kPanel)));

    float* const sums = p_;  // and where Q was
    clear(sums, dim * kPanel);
    mma(columns_, decayed_, 0, dim, sums);
    for (int x = 0; x < dim; ++x) {
      float* const at_x = s + x * kPanel;
      store(at_x, fma(up_u, load(sums + x * kPanel), mul(set1(last_), load(at_x))));
    }
  }

 private:
  void round_factors() {
    for (int j0 = 0; j0 < kTile; j0 += kPanel) {
      for (int i = 0; i < kTile; ++i) {
        store(a_.values + i * kTile + j0, first_of(load(inverse_ + in_panels(i, j0)), i - j0 + 1, zero()));
      }
    }
    round_to_f16(a_.values, kTile * kTile);
    round_to_f16(m_.values, kTile * kTile);
    a_.finish();
    m_.finish();
  }
};

}  // namespace

void delta_units_sm70(const DeltaTask& t) {
  delta_by_chunks<Chunk>(t);
}

}  // namespace nibble::cpu::NIBBLE_ISA
