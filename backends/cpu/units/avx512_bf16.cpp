// avx512_bf16.cpp: Linear of profile bf16 on the pair unit (VDPBF16PS), which adds a pair's upper product first, then
// the lower one: pairs are (lower k + 2, upper k), so that a vector of sums is a chain of even or of odd columns.
//   map   128 k of two panels are decoded into the first-level cache; six rows by two panels of both chains stay in
//         registers
//   cost  half the instructions of fma, and two additions for each 16
#include "backends/cpu/kernels/bf16_sums.h"
#include "backends/cpu/kernels/flush_mode.h"
#include "backends/cpu/units/pairs.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

constexpr int kTileRows = 6, kTilePanels = 2, kBlock = num::kBf16Block, kMost = 144;
constexpr int kPairs = kBlock / 2;                         // of a block: first those of the even chain
constexpr int kPanelWords = kSegment / 2 * kPanelRows;     // 32-bit words of a decoded panel
constexpr std::int64_t kSums = std::int64_t{kGroupPanels} * kMost * kPanelRows;

void operand(const float* x, std::int64_t count, std::int64_t row, std::int64_t row_bytes, std::byte* all) {
  std::byte* const to = all + row * row_bytes;
  alignas(64) static constexpr std::uint16_t kOrder[kBlock] = {2,  0,  6,  4,  10, 8,  14, 12, 18, 16, 22,
                                                               20, 26, 24, 30, 28, 3,  1,  7,  5,  11, 9,
                                                               15, 13, 19, 17, 23, 21, 27, 25, 31, 29};
  const __m512i order = _mm512_load_si512(kOrder);
  const auto put = [&](const float* from, std::int64_t k) {
    const __m512bh two = _mm512_cvtne2ps_pbh(load(from + 16).v, load(from).v);
    _mm512_storeu_si512(to + k * 2, _mm512_permutexvar_epi16(order, reinterpret_cast<__m512i>(two)));
  };
  std::int64_t k = 0;
  for (; k + kBlock <= count; k += kBlock) put(x + k, k);
  if (k == count) return;
  float rest[kBlock] = {};
  std::memcpy(rest, x + k, static_cast<std::size_t>(count - k) * sizeof(float));
  put(rest, k);
}

// Block i of a panel: eight vectors of the even chain's pairs, then eight of the odd one's.
void open(const PackedWeight& w, std::int64_t panel, std::int64_t k0, std::int64_t count, std::int32_t* to) {
  decode_any_pairs(w, panel, k0, count, [to](std::int64_t k, const F32x16* steps) __attribute__((always_inline)) {
    std::int32_t* const at = to + (k / kBlock * kPairs + k % kBlock / 4) * kPanelRows;
    _mm512_store_si512(at, pair(steps[2], steps[0]));
    _mm512_store_si512(at + kPairs / 2 * kPanelRows, pair(steps[3], steps[1]));
  });
}

NIBBLE_INLINE __m512bh words(const std::int32_t* p) {
  return reinterpret_cast<__m512bh>(_mm512_load_si512(p));
}
NIBBLE_INLINE __m512bh both(const std::byte* p) {
  std::int32_t two;
  std::memcpy(&two, p, sizeof two);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(two));
}

template <int Rows, int Panels>
__attribute__((noinline)) void tile(const std::byte* x, std::int64_t x_bytes, const std::int32_t* w, std::int64_t blocks, float* sums) {
  for (std::int64_t block = 0; block < blocks; ++block) {
    __m512 sum[2][Panels][Rows];
#pragma GCC unroll 16
    for (int chain = 0; chain < 2; ++chain) {
#pragma GCC unroll 16
      for (int p = 0; p < Panels; ++p) {
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) sum[chain][p][r] = _mm512_setzero_ps();
      }
    }
    const std::byte* const column = x + block * kBlock * 2;
    const std::int32_t* const weights = w + block * kPairs * kPanelRows;
    for (int i = 0; i < kPairs / 2; ++i) {
#pragma GCC unroll 2
      for (int chain = 0; chain < 2; ++chain) {
        const int at = chain * kPairs / 2 + i;
        __m512bh v[Panels];
        for (int p = 0; p < Panels; ++p) v[p] = words(weights + p * kPanelWords + at * kPanelRows);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          const __m512bh left = both(column + r * x_bytes + at * 4);
#pragma GCC unroll 16
          for (int p = 0; p < Panels; ++p) sum[chain][p][r] = _mm512_dpbf16_ps(sum[chain][p][r], left, v[p]);
        }
      }
    }
#pragma GCC unroll 16
    for (int p = 0; p < Panels; ++p) {
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        float* const total = sums + (p * kMost + r) * kPanelRows;
        store(total, add(load(total), add({sum[0][p][r]}, {sum[1][p][r]})));
      }
    }
  }
}

using TileFunction = void (*)(const std::byte*, std::int64_t, const std::int32_t*, std::int64_t, float*);
template <int Panels>
constexpr TileFunction kTiles[kTileRows] = {tile<1, Panels>, tile<2, Panels>, tile<3, Panels>,
                                            tile<4, Panels>, tile<5, Panels>, tile<6, Panels>};

template <int Panels>
void products(const Bf16Block& b, std::int64_t panel, std::int64_t k0, std::int64_t count, float* sums) {
  alignas(64) std::int32_t weights[kTilePanels * kPanelWords];
  for (int p = 0; p < Panels; ++p) open(*b.linear.weight, panel + p, k0, count, weights + p * kPanelWords);
  const std::int64_t rows = b.linear.rows, tiles = (rows + kTileRows - 1) / kTileRows;
  for (std::int64_t i = 0; i < tiles; ++i) {
    const std::int64_t row = rows * i / tiles;
    kTiles<Panels>[rows * (i + 1) / tiles - row - 1](b.x + row * b.x_bytes + k0 * 2, b.x_bytes, weights,
                                                    (count + kBlock - 1) / kBlock, sums + row * kPanelRows);
  }
}

// The additions flush as the unit itself does.
__attribute__((noinline)) void segment(const Bf16Block& b, std::int64_t first, std::int64_t last, std::int64_t begin,
                                       std::int64_t end, float* sums) {
  const FlushMode mode;
  for (std::int64_t k0 = begin; k0 < end; k0 += kSegment) {
    const std::int64_t count = end - k0 < kSegment ? end - k0 : kSegment;
    std::int64_t p = first;
    for (; p + 2 <= last; p += 2) products<2>(b, p, k0, count, sums + (p - first) * kMost * kPanelRows);
    if (p < last) products<1>(b, p, k0, count, sums + (p - first) * kMost * kPanelRows);
  }
}

void rows(const Bf16Block& b, std::int64_t panel_begin, std::int64_t panel_end, std::byte* scratch) {
  sum_segments(b, kMost, panel_begin, panel_end, kSums, scratch, segment);
}

constexpr Bf16Kernels kKernels{"pairs", 2, 1, 5, kMost, kGroupPanels, 2 * kSums * 4, operand, rows};

}  // namespace

const Bf16Kernels& bf16_unit() {
  return kKernels;
}

}  // namespace nibble::cpu::NIBBLE_ISA
