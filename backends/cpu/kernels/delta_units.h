// delta_units.h: the delta rule's chunks on matrix units, as far as profiles agree: gates, keys, L, X and W of
// core/numerics/delta_order.h, whose names these are.
//   map   a chunk's A and M once, then 16 columns of S at a time
//   cost  4.7 million products for 64 rows of a head of 128 x 128, each a tenth of the speed of a chain's
//
// A profile's Units: kMin, the least exponent of its operands; kOrder, how their products are added; round_keys().
#pragma once

#include <cassert>

#include "backends/cpu/kernels/lanes.h"
#include "backends/cpu/kernels/rounding.h"
#include "backends/cpu/kernels/sequence_table.h"
#include "backends/cpu/kernels/unit_product.h"
#include "core/numerics/delta_order.h"

namespace nibble::cpu::NIBBLE_ISA {

template <class Units>
class DeltaChunk {
 public:
  DeltaChunk(const DeltaTask& task, int first, int count) : t(task), row(first), rows(count), free_(task.work) {
    const int dim = t.key_dim;
    keys_ = left(kTile, dim);
    queries_ = left(kTile, dim);
    columns_ = left(dim, kTile);
    for (RightSide& panel : panels_) panel = right(dim);
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

 protected:
  using LeftSide = Left<Units::kMin>;
  using RightSide = Right<Units::kMin>;
  static constexpr int kBlock = num::kDeltaBlock;
  static_assert(kBlock == kPanel && kPanel == kLanes && kPanel == kPanelRows && kTile == 4 * kPanel);
  static constexpr auto mma = unit_mma<Units::kOrder.group, Units::kOrder.fraction_bits, Units::kMin>;
  static_assert(kTile % Units::kOrder.group == 0);

  static void clear(float* values, int count) {
    std::memset(values, 0, static_cast<std::size_t>(count) * sizeof(float));
  }
  // Element [i, j] of L, Z or X, which lie in panels of 16 columns.
  static int in_panels(int i, int j) { return (j / kPanel * kTile + i) * kPanel + j % kPanel; }

  // X, and M before it is rounded.
  void prepare() {
    prepare_gates();
    prepare_keys();
    prepare_products();
    invert();
  }
  F32x16 values_of(int i, int at) const {
    return i < rows ? load_part(t.v + (row + i) * t.qkv_stride + at, t.columns - at) : zero();
  }
  void store_output(int i, int at, F32x16 o) const {
    store_part(t.y + (row + i) * t.y_stride + at, o, t.columns - at);
  }

  const DeltaTask& t;
  const int row, rows;  // of the task
  LeftSide keys_, queries_;  // k, q: [64, key_dim]
  LeftSide columns_;         // k: [key_dim, 64]
  RightSide panels_[4];      // k: [key_dim, 16]: column j is key j
  RightSide state_;          // S: [key_dim, 16]
  LeftSide a_, m_;           // A, M
  RightSide r_, u_;          // R, U
  RightSide decayed_;        // d(G_last - G_j) U
  float *lower_, *inverse_;  // L, X: [4, 64, 16]
  float *p_, *q_;            // P, Q: [64, 16], one behind the other; other products take their places
  float *sums_, *grown_, *rest_, *beta_;  // [64]: G, d(G), d(G_last - G), beta
  float last_ = 0;                        // d(G_last)

 private:
  float* take(int floats) {
    float* const at = free_;
    free_ += floats;
    return at;
  }
  LeftSide left(int of, int stride) {
    float* const values = take(of * stride);
    return {values, reinterpret_cast<std::int32_t*>(take(of * stride)), of, stride, true};
  }
  RightSide right(int of) {
    float* const values = take(of * kPanel);
    return {values, reinterpret_cast<std::int16_t*>(take(of * kPanel / 2)), of, true};
  }
  void prepare_gates();
  void prepare_keys();
  void prepare_products();
  void invert();
  void invert_diagonal(int r);
  void invert_below(int r, int c);

  float* free_;
};

template <class Units>
void DeltaChunk<Units>::prepare_gates() {
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

template <class Units>
void DeltaChunk<Units>::prepare_keys() {
  const int dim = t.key_dim;
  const auto bytes = static_cast<std::size_t>(dim) * sizeof(float);
  for (int i = 0; i < rows; ++i) {
    std::memcpy(keys_.values + i * dim, t.k + (row + i) * t.qkv_stride, bytes);
    std::memcpy(queries_.values + i * dim, t.q + (row + i) * t.qkv_stride, bytes);
  }
  clear(keys_.values + rows * dim, (kTile - rows) * dim);
  clear(queries_.values + rows * dim, (kTile - rows) * dim);
  Units::round_keys(keys_.values, rows * dim);
  Units::round_keys(queries_.values, rows * dim);
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
  for (RightSide& panel : panels_) panel.finish();
  keys_.finish();
  queries_.finish();
  columns_.finish();
}

// L on and below the diagonal's blocks, M everywhere.
template <class Units>
void DeltaChunk<Units>::prepare_products() {
  clear(lower_, kTile * kTile);
  for (int j0 = 0; j0 < kTile; j0 += kPanel) {
    const RightSide& keys = panels_[j0 / kPanel];
    float* const z = lower_ + j0 * kTile;
    mma(keys_, keys, j0, kTile, z);
    clear(p_, kTile * kPanel);
    mma(queries_, keys, j0, kTile, p_);
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

template <class Units>
void DeltaChunk<Units>::invert_diagonal(int r) {
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

template <class Units>
void DeltaChunk<Units>::invert_below(int r, int c) {
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

template <class Units>
void DeltaChunk<Units>::invert() {
  constexpr int kBlocks = kTile / kBlock;
  for (int r = 0; r < kBlocks; ++r) invert_diagonal(r);
  for (int below = 1; below < kBlocks; ++below) {
    for (int r = below; r < kBlocks; ++r) invert_below(r, r - below);
  }
}

// A prompt's rows on the absolute 64-grid. Chunk: a DeltaChunk with panel(), which takes 16 columns of S, and of the
// rows' values and outputs.
template <class Chunk>
void delta_by_chunks(const DeltaTask& t) {
  assert(t.key_dim == 32 || t.key_dim == 128);
  if (t.records.count > 0) fold({t.s, t.s, t.panels, t.key_dim, t.records});
  for (int row = 0; row < t.rows;) {
    const int room = kTile - static_cast<int>((t.position + row) % kTile);
    const int rows = room < t.rows - row ? room : t.rows - row;
    Chunk c(t, row, rows);
    for (int p = 0; p < t.panels; ++p) c.panel(p);
    row += rows;
  }
}

}  // namespace nibble::cpu::NIBBLE_ISA
