// delta_units.cpp: the delta rule for prefill rows as profile sm90's matrix units compute it. Contract and names:
// core/numerics/delta_order.h; q and k hold bf16 values.
//   map   a chunk's A and M once, then 16 columns of S at a time
//   cost  4.7 million products for 64 rows of a head of 128 x 128, each a tenth of the speed of a chain's
#include <cassert>

#include "backends/cpu/kernels/fused_group.h"
#include "backends/cpu/kernels/lanes.h"
#include "backends/cpu/kernels/rounding.h"
#include "backends/cpu/kernels/sequence_table.h"
#include "core/numerics/delta_order.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

constexpr int kMin = num::kBf16MinExponent;  // tf32's too
constexpr int kBlock = num::kDeltaBlock;
constexpr num::MatrixOrder kBf16 = num::kSm90Order, kTf32 = num::kSm90Tf32Order;
static_assert(kBlock == kPanel && kPanel == kLanes && kPanel == kPanelRows && kTile % kBf16.group == 0);

struct Left {  // [rows, stride]
  float* values;
  std::int32_t* exponents;
  int rows, stride;
  bool ordinary;

  void finish() {
    const int count = rows * stride;
    std::int32_t others = 0;
    for (int i = 0; i < count; ++i) {
      exponents[i] = row_exponent<kMin>(values[i]);
      others |= is_ordinary<kMin>(values[i]) ? 0 : 1;
    }
    ordinary = others == 0;
  }
};

struct Right {  // [rows, 16]
  float* values;
  std::int16_t* exponents;
  int rows;
  bool ordinary;

  void finish() { ordinary = panel_exponents<kMin>(values, rows, exponents); }
  void round_to_bf16() {
    rounding_kernels().bf16(values, std::int64_t{rows} * kPanel);
    finish();
  }
};

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

template <int G, int F, int Rows>
__attribute__((noinline)) void row_chains(const Left& a, const Right& b, int row, float* c) {
  const int at = row * a.stride;
  fused_chain<G, F, kMin, 24, Rows>(a.values + at, a.exponents + at, a.stride, b.values, b.exponents, b.rows,
                                    a.ordinary && b.ordinary, c + row * kPanel);
}

// c [.., 16] of rows begin .. end. Not inlined: what is computed around it rounds to nearest.
template <int G, int F>
__attribute__((noinline)) void mma(const Left& a, const Right& b, int begin, int end, float* c) {
  const TowardZero mode;
  int row = begin;
  for (; row + 2 <= end; row += 2) row_chains<G, F, 2>(a, b, row, c);
  if (row < end) row_chains<G, F, 1>(a, b, row, c);
}
constexpr auto mma_bf16 = mma<kBf16.group, kBf16.fraction_bits>;
constexpr auto mma_tf32 = mma<kTf32.group, kTf32.fraction_bits>;

void clear(float* values, int count) {
  std::memset(values, 0, static_cast<std::size_t>(count) * sizeof(float));
}

class Chunk {
 public:
  Chunk(const DeltaTask& task, int first, int count) : t(task), row(first), rows(count), free_(task.work) {
    const int dim = t.key_dim;
    keys_ = left(kTile, dim);
    queries_ = left(kTile, dim);
    columns_ = left(dim, kTile);
    for (Right& panel : panels_) panel = right(dim);
    state_ = right(dim);
    a_ = left(kTile, kTile);
    m_ = left(kTile, kTile);
    r_ = right(kTile);
    u_ = right(kTile);
    decayed_ = right(kTile);
    lower_ = take(kTile * kTile);
    inverse_ = take(kTile * kTile);
    p_ = take(kTile * kPanel);
    q_ = take(kTile * kPanel);
    sums_ = take(kTile);
    grown_ = take(kTile);
    rest_ = take(kTile);
    beta_ = take(kTile);
    assert(free_ - t.work == delta_units_work_floats(dim));
  }

  void prepare() {
    prepare_gates();
    prepare_keys();
    prepare_products();
    invert();
    round_factors();
  }
  void panel(int p);

 private:
  float* take(int floats) {
    float* const at = free_;
    free_ += floats;
    return at;
  }
  Left left(int of, int stride) {
    float* const values = take(of * stride);
    return {values, reinterpret_cast<std::int32_t*>(take(of * stride)), of, stride, true};
  }
  Right right(int of) {
    float* const values = take(of * kPanel);
    return {values, reinterpret_cast<std::int16_t*>(take(of * kPanel / 2)), of, true};
  }
  // Element [i, j] of L, Z or X, which lie in panels of 16 columns.
  static int in_panels(int i, int j) { return (j / kPanel * kTile + i) * kPanel + j % kPanel; }

  void prepare_gates();
  void prepare_keys();
  void prepare_products();
  void invert();
  void invert_diagonal(int r);
  void invert_below(int r, int c);
  void round_factors();

  const DeltaTask& t;
  const int row, rows;  // of the task
  float* free_;
  Left keys_, queries_;  // k, q: [64, key_dim]
  Left columns_;         // k: [key_dim, 64]
  Right panels_[4];      // k: [key_dim, 16]: column j is key j
  Right state_;          // bf16(S): [key_dim, 16]
  Left a_, m_;           // A, M
  Right r_, u_;          // R, bf16(U)
  Right decayed_;        // bf16(d(G_last - G_j) U)
  float *lower_, *inverse_;  // L, X: [4, 64, 16]
  float *p_, *q_;            // P, Q: [64, 16]; U takes P's place
  float *sums_, *grown_, *rest_, *beta_;  // [64]: G, d(G), d(G_last - G), beta
  float last_ = 0;                        // d(G_last)
};
static_assert(kTile == 4 * kPanel);

void Chunk::prepare_gates() {
  float sum = 0.0f;
  for (int i = 0; i < kTile; ++i) {
    if (i < rows) sum = num::add(sum, t.g[(row + i) * t.g_stride]);
    sums_[i] = sum;
    beta_[i] = i < rows ? t.beta[(row + i) * t.beta_stride] : 0.0f;
  }
  for (int i = 0; i < kTile; i += kLanes) {
    const F32x16 g = load(sums_ + i);
    store(grown_ + i, exp(g));
    store(rest_ + i, exp(sub(set1(sum), g)));
  }
  last_ = num::exp(sum);
}

void Chunk::prepare_keys() {
  const int dim = t.key_dim;
  const auto bytes = static_cast<std::size_t>(dim) * sizeof(float);
  for (int i = 0; i < rows; ++i) {
    std::memcpy(keys_.values + i * dim, t.k + (row + i) * t.qkv_stride, bytes);
    std::memcpy(queries_.values + i * dim, t.q + (row + i) * t.qkv_stride, bytes);
  }
  clear(keys_.values + rows * dim, (kTile - rows) * dim);
  clear(queries_.values + rows * dim, (kTile - rows) * dim);
  for (int j0 = 0; j0 < kTile; j0 += kPanel) {
    for (int x0 = 0; x0 < dim; x0 += kLanes) {
      F32x16 x[kLanes];
      NIBBLE_UNROLL
      for (int j = 0; j < kLanes; ++j) x[j] = load(keys_.values + (j0 + j) * dim + x0);
      transpose(x);
      for (int i = 0; i < kLanes; ++i) {
        store(panels_[j0 / kPanel].values + (x0 + i) * kPanel, x[i]);
        store(columns_.values + (x0 + i) * kTile + j0, x[i]);
      }
    }
  }
  for (Right& panel : panels_) panel.finish();
  keys_.finish();
  queries_.finish();
  columns_.finish();
}

// L on and below the diagonal's blocks, M everywhere.
void Chunk::prepare_products() {
  clear(lower_, kTile * kTile);
  for (int j0 = 0; j0 < kTile; j0 += kPanel) {
    const Right& keys = panels_[j0 / kPanel];
    float* const z = lower_ + j0 * kTile;
    mma_bf16(keys_, keys, j0, kTile, z);
    clear(p_, kTile * kPanel);
    mma_bf16(queries_, keys, j0, kTile, p_);
    const F32x16 sums = load(sums_ + j0);
    for (int i = 0; i < j0; ++i) store(m_.values + i * kTile + j0, zero());
    for (int i = j0; i < kTile; ++i) {
      const F32x16 d = exp(sub(set1(sums_[i]), sums));
      float* const l = z + i * kPanel;
      store(l, first_of(mul(mul(set1(beta_[i]), load(l)), d), i - j0, zero()));
      store(m_.values + i * kTile + j0, first_of(mul(load(p_ + i * kPanel), d), i - j0 + 1, zero()));
    }
  }
}

void Chunk::invert_diagonal(int r) {
  const int begin = r * kBlock;
  for (int i = begin; i < begin + kBlock; ++i) {
    F32x16 sum = zero();
    for (int m = begin; m < i; ++m) {
      sum = fma(set1(lower_[in_panels(i, m)]), load(inverse_ + in_panels(m, begin)), sum);
    }
    float* const x = inverse_ + in_panels(i, begin);
    store(x, first_of(negative(sum), i - begin, zero()));
    x[i - begin] = 1.0f;
  }
}

void Chunk::invert_below(int r, int c) {
  const int begin = r * kBlock, column = c * kBlock;
  F32x16 y[kBlock];
  for (int i = 0; i < kBlock; ++i) {
    F32x16 sum = zero();
    for (int m = column; m < begin; ++m) {
      sum = fma(set1(lower_[in_panels(begin + i, m)]), load(inverse_ + in_panels(m, column)), sum);
    }
    y[i] = sum;
  }
  for (int i = 0; i < kBlock; ++i) {
    F32x16 sum = zero();
    for (int m = 0; m < kBlock; ++m) sum = fma(set1(inverse_[in_panels(begin + i, begin + m)]), y[m], sum);
    store(inverse_ + in_panels(begin + i, column), negative(sum));
  }
}

void Chunk::invert() {
  constexpr int kBlocks = kTile / kBlock;
  for (int r = 0; r < kBlocks; ++r) invert_diagonal(r);
  for (int below = 1; below < kBlocks; ++below) {
    for (int r = below; r < kBlocks; ++r) invert_below(r, r - below);
  }
}

void Chunk::round_factors() {
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

// 16 columns of S, and of the rows' values and outputs.
void Chunk::panel(int p) {
  const int dim = t.key_dim, at = p * kPanel;
  float* const s = t.s + std::int64_t{at} * dim;
  std::memcpy(state_.values, s, static_cast<std::size_t>(dim) * kPanel * sizeof(float));
  state_.round_to_bf16();
  clear(p_, kTile * kPanel);
  clear(q_, kTile * kPanel);
  mma_bf16(keys_, state_, 0, kTile, p_);
  mma_bf16(queries_, state_, 0, rows, q_);

  for (int i = 0; i < kTile; ++i) {
    const F32x16 value = i < rows ? load_part(t.v + (row + i) * t.qkv_stride + at, t.columns - at) : zero();
    const F32x16 grown = set1(grown_[i]);
    store(r_.values + i * kPanel, fma(negative(grown), load(p_ + i * kPanel), value));
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
  u_.round_to_bf16();
  decayed_.round_to_bf16();
  mma_bf16(m_, u_, 0, rows, q_);
  for (int i = 0; i < rows; ++i) {
    store_part(t.y + (row + i) * t.y_stride + at, load(q_ + i * kPanel), t.columns - at);
  }
  for (int x = 0; x < dim; ++x) store(s + x * kPanel, mul(set1(last_), load(s + x * kPanel)));
  mma_bf16(columns_, decayed_, 0, dim, s);
}

}  // namespace

void delta_units(const DeltaTask& t) {
  assert(t.key_dim == 32 || t.key_dim == 128);
  if (t.records.count > 0) fold({t.s, t.s, t.panels, t.key_dim, t.records});
  for (int row = 0; row < t.rows;) {
    const int room = kTile - static_cast<int>((t.position + row) % kTile);
    const int rows = room < t.rows - row ? room : t.rows - row;
    Chunk c(t, row, rows);
    c.prepare();
    for (int p = 0; p < t.panels; ++p) c.panel(p);
    row += rows;
  }
}

}  // namespace nibble::cpu::NIBBLE_ISA
