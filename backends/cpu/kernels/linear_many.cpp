// linear_many.cpp: up to kBlockRows rows. For each segment and panel the weights are decoded once
// into a block [128, 16] of float32 in the first-level cache; a tile of rows x 16 outputs stays in
// registers over the 128 k of the segment.
//   map   tile 6 x 16 (AVX2: 12 of 16 registers), 12 x 32 (AVX-512: 24 of 32); rows of x are reused
//         from the second-level cache by kGroupPanels panels
//   cost  decoding once for each kBlockRows rows: 2 to 4 % of the fma time
#include "backends/cpu/kernels/linear_finish.h"
#include "backends/cpu/kernels/panel_block.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

#if defined(NIBBLE_ISA_avx512)
constexpr int kTileRows = 12, kTilePanels = 2;
#else
constexpr int kTileRows = 6, kTilePanels = 1;
#endif
constexpr int kBlockFloats = kSegment * kPanelRows;

// Where a tile lies: rows [row, row + Rows) of the block, panels [panel, panel + Panels).
struct Tile {
  std::int64_t row, panel, segment, count;
  const float* w;  // [Panels][128, 16]
  float* totals;   // [panel of the group][kBlockRows, 16], at the tile's first panel
};

template <int Rows, int Panels>
void tile(const LinearBlock& b, const Tile& t) {
  const float* x = b.x + t.row * b.x_stride + t.segment * kSegment;
  F32x16 sum[Panels][Rows];
#pragma GCC unroll 16
  for (int p = 0; p < Panels; ++p) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) sum[p][r] = zero();
  }
  for (std::int64_t k = 0; k < t.count; ++k) {
    F32x16 w[Panels];
    for (int p = 0; p < Panels; ++p) w[p] = load(t.w + p * kBlockFloats + k * kPanelRows);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const F32x16 v = set1(x[r * b.x_stride + k]);
#pragma GCC unroll 16
      for (int p = 0; p < Panels; ++p) sum[p][r] = fma(v, w[p], sum[p][r]);
    }
  }
#pragma GCC unroll 16
  for (int p = 0; p < Panels; ++p) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      float* total = t.totals + (p * kBlockRows + t.row + r) * kPanelRows;
      store(total, add_segment(b, t.panel + p, t.segment, t.row + r, sum[p][r], load(total)));
    }
  }
}

template <int Panels>
void any_tile(const LinearBlock& b, const Tile& t, std::int64_t rows) {
  switch (rows) {
    case 1:
      return tile<1, Panels>(b, t);
    case 2:
      return tile<2, Panels>(b, t);
    case 3:
      return tile<3, Panels>(b, t);
    case 4:
      return tile<4, Panels>(b, t);
    case 5:
      return tile<5, Panels>(b, t);
    case 6:
      return tile<6, Panels>(b, t);
#if defined(NIBBLE_ISA_avx512)
    case 7:
      return tile<7, Panels>(b, t);
    case 8:
      return tile<8, Panels>(b, t);
    case 9:
      return tile<9, Panels>(b, t);
    case 10:
      return tile<10, Panels>(b, t);
    case 11:
      return tile<11, Panels>(b, t);
    case 12:
      return tile<12, Panels>(b, t);
#endif
  }
}

// Rows in tiles of almost equal height: a low tile waits on the latency of its few chains.
template <int Panels>
void all_tiles(const LinearBlock& b, Tile t) {
  const std::int64_t tiles = (b.rows + kTileRows - 1) / kTileRows;
  for (std::int64_t i = 0; i < tiles; ++i) {
    t.row = b.rows * i / tiles;
    any_tile<Panels>(b, t, b.rows * (i + 1) / tiles - t.row);
  }
}

}  // namespace

void many_rows(const LinearBlock& b, std::int64_t panel_begin, std::int64_t panel_end) {
  alignas(64) float totals[kGroupPanels * kBlockRows * kPanelRows];
  alignas(64) float weights[kTilePanels * kBlockFloats];
  const std::int64_t cols = b.weight->cols;
  for (std::int64_t first = panel_begin; first < panel_end; first += kGroupPanels) {
    const std::int64_t last = first + kGroupPanels < panel_end ? first + kGroupPanels : panel_end;
    for (std::int64_t p = 0; p < last - first; ++p) {
      std::memset(totals + p * kBlockRows * kPanelRows, 0,
                  static_cast<std::size_t>(b.rows) * kPanelRows * sizeof(float));
    }
    for (std::int64_t k0 = 0; k0 < cols; k0 += kSegment) {
      const std::int64_t count = cols - k0 < kSegment ? cols - k0 : kSegment;
      std::int64_t p = first;
      while (p < last) {
        Tile t{0, p, k0 / kSegment, count, weights, totals + (p - first) * kBlockRows * kPanelRows};
        decode_any(*b.weight, p, k0, count, weights);
        if (kTilePanels == 2 && p + 1 < last) {
          decode_any(*b.weight, p + 1, k0, count, weights + (kTilePanels - 1) * kBlockFloats);
          all_tiles<kTilePanels>(b, t);
          p += 2;
        } else {
          all_tiles<1>(b, t);
          p += 1;
        }
      }
    }
    for (std::int64_t p = first; p < last; ++p) {
      const float* total = totals + (p - first) * kBlockRows * kPanelRows;
      for (std::int64_t r = 0; r < b.rows; ++r) finish(b, p, r, load(total + r * kPanelRows));
    }
  }
}

}  // namespace nibble::cpu::NIBBLE_ISA
