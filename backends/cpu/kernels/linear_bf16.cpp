// linear_bf16.cpp: Linear of profile bf16 by fma, on operands widened to float32.
//   map   up to kFew rows: weights go from memory through a decoder into the chains; more rows: 128 k of one or two
//         panels are decoded into the first-level cache and serve a register tile of rows, first the even columns of
//         a block, then the odd ones
//   cost  that of profile f32, and for each 32 fma two additions and a few loads
#include "backends/cpu/kernels/linear_bf16.h"

#include "backends/cpu/kernels/bf16_sums.h"
#include "backends/cpu/kernels/flush_mode.h"
#include "backends/cpu/kernels/panel_block.h"
#include "backends/cpu/kernels/row_decode.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

constexpr int kBlock = num::kBf16Block, kFew = 4, kMost = 144;
static_assert(kSegment % kBlock == 0);
#if defined(NIBBLE_ISA_avx512)
constexpr int kTileRows = 12, kTilePanels = 2;
#else
constexpr int kTileRows = 6, kTilePanels = 1;
#endif
constexpr int kBlockFloats = kSegment * kPanelRows;

const float* row_of(const Bf16Block& b, std::int64_t row) {
  return reinterpret_cast<const float*>(b.x + row * b.x_bytes);
}

void operand(const float* x, std::int64_t count, std::int64_t row, std::int64_t row_bytes, std::byte* all) {
  auto* const out = reinterpret_cast<float*>(all + row * row_bytes);
  for (std::int64_t k = 0; k < count; ++k) out[k] = num::bf16_operand(x[k]);
  for (std::int64_t k = count; k % kBlock != 0; ++k) out[k] = 0.0f;
}

// Chains of `blocks` blocks go on in totals, [Panels][kMost, 16] at the tile's first row; w [Panels][128, 16].
template <int Rows, int Panels>
__attribute__((noinline)) void tile(const float* x, std::int64_t x_stride, const float* w, std::int64_t blocks,
                                    float* totals) {
  for (std::int64_t block = 0; block < blocks; ++block) {
    alignas(64) float even[Panels][Rows][kPanelRows];
    for (int odd = 0; odd < 2; ++odd) {
      F32x16 sum[Panels][Rows];
#pragma GCC unroll 16
      for (int p = 0; p < Panels; ++p) {
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) sum[p][r] = zero();
      }
      const float* column = x + block * kBlock + odd;
      const float* weights = w + (block * kBlock + odd) * kPanelRows;
      for (int k = 0; k < kBlock; k += 2) {
        F32x16 v[Panels];
        for (int p = 0; p < Panels; ++p) v[p] = load(weights + p * kBlockFloats + k * kPanelRows);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          const F32x16 left = set1(column[r * x_stride + k]);
#pragma GCC unroll 16
          for (int p = 0; p < Panels; ++p) sum[p][r] = fma_flush(left, v[p], sum[p][r]);
        }
      }
#pragma GCC unroll 16
      for (int p = 0; p < Panels; ++p) {
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          if (odd == 0) {
            store(even[p][r], sum[p][r]);
          } else {
            float* const total = totals + (p * kMost + r) * kPanelRows;
            store(total, add_flush(load(total), add_flush(load(even[p][r]), sum[p][r])));
          }
        }
      }
    }
  }
}

using TileFunction = void (*)(const float*, std::int64_t, const float*, std::int64_t, float*);
template <int Panels>
TileFunction tile_of(std::int64_t rows) {
#if defined(NIBBLE_ISA_avx512)
  constexpr TileFunction kAll[] = {tile<1, Panels>, tile<2, Panels>,  tile<3, Panels>,  tile<4, Panels>,
                                   tile<5, Panels>, tile<6, Panels>,  tile<7, Panels>,  tile<8, Panels>,
                                   tile<9, Panels>, tile<10, Panels>, tile<11, Panels>, tile<12, Panels>};
#else
  constexpr TileFunction kAll[] = {tile<1, Panels>, tile<2, Panels>, tile<3, Panels>,
                                   tile<4, Panels>, tile<5, Panels>, tile<6, Panels>};
#endif
  static_assert(std::size(kAll) == kTileRows);
  return kAll[rows - 1];
}

// 128 k (or what is left) of a panel, with zeros up to whole blocks.
void open(const PackedWeight& w, std::int64_t panel, std::int64_t k0, std::int64_t count, float* to) {
  decode_any(w, panel, k0, count, to);
  if (!kModeFlushesOperands) {
    for (std::int64_t i = 0; i < count * kPanelRows; ++i) to[i] = num::flush(to[i]);
  }
  for (std::int64_t k = count; k % kBlock != 0; ++k) store(to + k * kPanelRows, zero());
}

// One decoder, four blocks of one panel; `Together` of them at a time, since a chain's fma waits for the one before.
template <class AnyDecoder, int Rows>
__attribute__((noinline)) void few_chains(const Bf16Block& b, const std::byte* panel, std::int64_t k0, float* totals) {
  constexpr int kTogether = Rows == 1 ? 4 : Rows == 2 ? 2 : 1;
  AnyDecoder decoder;
  decoder.open(*b.linear.weight, panel, k0, kSegment);
  for (int first = 0; first < kSegment / kBlock; first += kTogether) {
    F32x16 even[kTogether][Rows], odd[kTogether][Rows];
    for (int s = 0; s < kTogether; ++s) {
      for (int r = 0; r < Rows; ++r) even[s][r] = odd[s][r] = zero();
    }
    for (int c = 0; c < kBlock / 4; ++c) {
      for (int s = 0; s < kTogether; ++s) {
        F32x16 w[4];
        const int chunk = (first + s) * (kBlock / 4) + c;
        decoder.prefetch(chunk, 1);
        decoder.chunk(chunk, w);
        for (int r = 0; r < Rows; ++r) {
          const float* const x = row_of(b, r) + k0 + chunk * 4;
          even[s][r] = fma_flush(set1(x[0]), w[0], even[s][r]);
          odd[s][r] = fma_flush(set1(x[1]), w[1], odd[s][r]);
          even[s][r] = fma_flush(set1(x[2]), w[2], even[s][r]);
          odd[s][r] = fma_flush(set1(x[3]), w[3], odd[s][r]);
        }
      }
    }
    for (int s = 0; s < kTogether; ++s) {
      for (int r = 0; r < Rows; ++r) {
        float* const total = totals + r * kPanelRows;
        store(total, add_flush(load(total), add_flush(even[s][r], odd[s][r])));
      }
    }
  }
}

template <class AnyDecoder>
void few_segment(const Bf16Block& b, const std::byte* panel, std::int64_t k0, float* totals) {
  switch (b.linear.rows) {
    case 1:
      return few_chains<AnyDecoder, 1>(b, panel, k0, totals);
    case 2:
      return few_chains<AnyDecoder, 2>(b, panel, k0, totals);
    case 3:
      return few_chains<AnyDecoder, 3>(b, panel, k0, totals);
    default:
      return few_chains<AnyDecoder, 4>(b, panel, k0, totals);
  }
}

// Unquantised weights in 16 bits are bf16 here; subnormal ones count as zero, so only modes that see to that read
// them on the way.
bool streams(const PackedWeight& w) {
  return w.format == WeightFormat::nvfp4 || w.format == WeightFormat::fp8_e4m3 ||
         (w.format == WeightFormat::bf16 && kModeFlushesOperands);
}

template <template <WeightFormat> class AnyDecoder>
void few_stream(const Bf16Block& b, std::int64_t panel, std::int64_t k0, float* totals) {
  const PackedWeight& w = *b.linear.weight;
  const std::byte* const codes = w.codes + panel * w.panel_bytes;
  if (w.format == WeightFormat::nvfp4) return few_segment<AnyDecoder<WeightFormat::nvfp4>>(b, codes, k0, totals);
  if (w.format == WeightFormat::bf16) return few_segment<AnyDecoder<WeightFormat::bf16>>(b, codes, k0, totals);
  return few_segment<AnyDecoder<WeightFormat::fp8_e4m3>>(b, codes, k0, totals);
}

void few_any(const Bf16Block& b, std::int64_t panel, std::int64_t k0, std::int64_t count, float* totals) {
  const PackedWeight& w = *b.linear.weight;
  if (count == kSegment && streams(w)) {
    return w.layout == Layout::rows ? few_stream<RowDecoder>(b, panel, k0, totals) : few_stream<Decoder>(b, panel, k0, totals);
  }
  alignas(64) float weights[kBlockFloats];
  open(w, panel, k0, count, weights);
  tile_of<1>(b.linear.rows)(row_of(b, 0) + k0, b.x_bytes / 4, weights, (count + kBlock - 1) / kBlock, totals);
}

template <int Panels>
void many(const Bf16Block& b, std::int64_t panel, std::int64_t k0, std::int64_t count, float* totals) {
  alignas(64) float weights[kTilePanels * kBlockFloats];
  for (int p = 0; p < Panels; ++p) open(*b.linear.weight, panel + p, k0, count, weights + p * kBlockFloats);
  const std::int64_t rows = b.linear.rows, tiles = (rows + kTileRows - 1) / kTileRows;
  for (std::int64_t i = 0; i < tiles; ++i) {
    const std::int64_t row = rows * i / tiles;
    tile_of<Panels>(rows * (i + 1) / tiles - row)(row_of(b, row) + k0, b.x_bytes / 4, weights,
                                                  (count + kBlock - 1) / kBlock, totals + row * kPanelRows);
  }
}

// Columns [begin, end) of panels [first, last): the sums of one segment.
__attribute__((noinline)) void segment(const Bf16Block& b, std::int64_t first, std::int64_t last, std::int64_t begin,
                                       std::int64_t end, float* sums) {
  const FlushMode mode;
  const bool few = b.linear.rows <= kFew;
  for (std::int64_t k0 = begin; k0 < end; k0 += kSegment) {
    const std::int64_t count = end - k0 < kSegment ? end - k0 : kSegment;
    for (std::int64_t p = first; p < last;) {
      float* const at = sums + (p - first) * kMost * kPanelRows;
      if (few) {
        few_any(b, p, k0, count, at);
        p += 1;
      } else if (kTilePanels == 2 && p + 1 < last) {
        many<kTilePanels>(b, p, k0, count, at);
        p += 2;
      } else {
        many<1>(b, p, k0, count, at);
        p += 1;
      }
    }
  }
}

constexpr std::int64_t kSums = std::int64_t{kGroupPanels} * kMost * kPanelRows;

void rows(const Bf16Block& b, std::int64_t panel_begin, std::int64_t panel_end, std::byte* scratch) {
  sum_segments(b, kMost, panel_begin, panel_end, kSums, scratch, segment);
}

constexpr Bf16Kernels kKernels{"fma", sizeof(float), 1, 1, kMost, kGroupPanels, 2 * kSums * sizeof(float), operand, rows};

}  // namespace

const Bf16Kernels& bf16_fma() {
  return kKernels;
}

}  // namespace nibble::cpu::NIBBLE_ISA
