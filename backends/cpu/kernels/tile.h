// tile.h: chains (one accumulator, fma in ascending index order) for a block of rows and columns at
// once. Which rows and columns share a block changes no bit: each accumulator is a chain of its
// own.
//
// Right-hand sides come in panels of 16 columns: element (k, n) at
// (n / 16) * panel_stride + k * row_stride + n % 16.
#pragma once

#include "backends/cpu/kernels/lanes.h"

namespace nibble::cpu::NIBBLE_ISA {

// As many accumulators as leave registers for the operands.
constexpr int kTileRows = 6;
#if defined(NIBBLE_ISA_avx512)
constexpr int kTilePanels = 4;
#else
constexpr int kTilePanels = 1;
#endif

struct Panels {
  const float* data;
  std::int64_t row_stride, panel_stride;
};

template <int M, int P>
struct Tile {
  F32x16 at[M][P];
};

template <int M, int P>
NIBBLE_INLINE void clear(Tile<M, P>& t) {
  NIBBLE_UNROLL
  for (int m = 0; m < M; ++m) {
    NIBBLE_UNROLL
    for (int p = 0; p < P; ++p) t.at[m][p] = zero();
  }
}

// t[m, n] = chain going on over k in [begin, end) of a[m, k] * b[k, n].
template <int M, int P>
NIBBLE_INLINE void extend(Tile<M, P>& t, const float* a, std::int64_t a_stride, Panels b, int begin,
                          int end) {
  const float* row = b.data + begin * b.row_stride;
  for (int k = begin; k < end; ++k, row += b.row_stride) {
    F32x16 right[P];
    NIBBLE_UNROLL
    for (int p = 0; p < P; ++p) right[p] = load(row + p * b.panel_stride);
    NIBBLE_UNROLL
    for (int m = 0; m < M; ++m) {
      const F32x16 left = set1(a[m * a_stride + k]);
      NIBBLE_UNROLL
      for (int p = 0; p < P; ++p) t.at[m][p] = fma(left, right[p], t.at[m][p]);
    }
  }
}

// body.operator()<M>(first row) for blocks that cover [0, rows) in order.
template <class Body>
NIBBLE_INLINE void for_row_blocks(int rows, const Body& body) {
  int m = 0;
  for (; m + kTileRows <= rows; m += kTileRows) body.template operator()<kTileRows>(m);
  static_assert(kTileRows == 6);
  switch (rows - m) {
    case 1:
      body.template operator()<1>(m);
      break;
    case 2:
      body.template operator()<2>(m);
      break;
    case 3:
      body.template operator()<3>(m);
      break;
    case 4:
      body.template operator()<4>(m);
      break;
    case 5:
      body.template operator()<5>(m);
      break;
    default:
      break;
  }
}

// body.operator()<P>(first panel) for groups that cover [0, panels) in order.
template <class Body>
NIBBLE_INLINE void for_panel_groups(int panels, const Body& body) {
  int p = 0;
  for (; p + kTilePanels <= panels; p += kTilePanels) body.template operator()<kTilePanels>(p);
  for (; p < panels; ++p) body.template operator()<1>(p);
}

}  // namespace nibble::cpu::NIBBLE_ISA
