// amx.cpp: Linear of profile bf16 on the tile unit (AMX-BF16).
//   map   kDepth k of up to kPanels panels are decoded into tiles in the second-level cache; two row tiles by two panels
//         of sums stay in the unit's registers over them, whose operands (16 KiB each) the first-level cache holds; sums
//         between depths lie in scratch
//   cost  16 cycles for each product of tiles; decoding once for each kMostRows rows
#include "backends/cpu/kernels/bf16_sums.h"
#include "backends/cpu/units/pairs.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

constexpr int kTileRows = 16, kTileFloats = kTileRows * kPanelRows, kBlock = num::kBf16Block;
constexpr int kMostRows = 512, kDepth = 256, kPanels = 16;
constexpr int kTileBytes = 1024, kPanelBytes = kDepth / kBlock * kTileBytes;
constexpr std::int64_t kSums = std::int64_t{kPanels} * kMostRows * kPanelRows;

// Eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
// A constant: GCC 12 believes that loading it reads 8 bytes, and drops stores to the others.
constexpr TileConfig kConfig;

class Tiles {
 public:
  Tiles() { _tile_loadconfig(&kConfig); }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// Rows of a tile lie beside each other, tile after tile along K: what a stream of tile loads likes best.
void operand(const float* x, std::int64_t count, std::int64_t row, std::int64_t row_bytes, std::byte* all) {
  std::byte* to = all + row / kTileRows * kTileRows * row_bytes + row % kTileRows * 64;
  const auto put = [&to](const float* from) {
    const __m512bh two = _mm512_cvtne2ps_pbh(load(from + 16).v, load(from).v);
    std::memcpy(to, &two, sizeof two);
    to += kTileBytes;
  };
  std::int64_t k = 0;
  for (; k + kBlock <= count; k += kBlock) put(x + k);
  if (k == count) return;
  float rest[kBlock] = {};
  std::memcpy(rest, x + k, static_cast<std::size_t>(count - k) * sizeof(float));
  put(rest);
}

// Tiles of pairs of k: row i of a tile has k-steps 2i and 2i + 1 of sixteen outputs.
void open(const PackedWeight& w, std::int64_t panel, std::int64_t k0, std::int64_t count, std::byte* to) {
  decode_any_pairs(w, panel, k0, count, [to](std::int64_t k, const F32x16* steps) __attribute__((always_inline)) {
    _mm512_store_si512(to + k * 32, pair(steps[0], steps[1]));
    _mm512_store_si512(to + k * 32 + 64, pair(steps[2], steps[3]));
  });
}

// Where a product of tiles lies.
struct At {
  const std::byte* x;  // tiles of the first row tile
  std::int64_t x_bytes;  // to the next row tile
  const std::byte* w;  // tiles of the first panel
  std::int64_t blocks;
  float* sums;  // of the first row and panel
  bool fresh;   // sums are not there yet
};

#define NIBBLE_SUM(tile, row_tile, panel)                                                              \
  if (at.fresh) {                                                                                      \
    _tile_zero(tile);                                                                                  \
  } else {                                                                                             \
    _tile_loadd(tile, at.sums + (panel) * kMostRows * kPanelRows + (row_tile) * kTileFloats, 64);      \
  }
#define NIBBLE_KEEP(tile, row_tile, panel) \
  _tile_stored(tile, at.sums + (panel) * kMostRows * kPanelRows + (row_tile) * kTileFloats, 64)

// 32 rows, two panels.
void two_by_two(const At& at) {
  NIBBLE_SUM(0, 0, 0)
  NIBBLE_SUM(1, 0, 1)
  NIBBLE_SUM(2, 1, 0)
  NIBBLE_SUM(3, 1, 1)
  for (std::int64_t i = 0; i < at.blocks; ++i) {
    _tile_loadd(4, at.x + i * kTileBytes, 64);
    _tile_loadd(6, at.w + i * kTileBytes, 64);
    _tile_loadd(7, at.w + kPanelBytes + i * kTileBytes, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, at.x + at.x_bytes + i * kTileBytes, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  NIBBLE_KEEP(0, 0, 0);
  NIBBLE_KEEP(1, 0, 1);
  NIBBLE_KEEP(2, 1, 0);
  NIBBLE_KEEP(3, 1, 1);
}

// 16 rows, two panels.
void one_by_two(const At& at) {
  NIBBLE_SUM(0, 0, 0)
  NIBBLE_SUM(1, 0, 1)
  for (std::int64_t i = 0; i < at.blocks; ++i) {
    _tile_loadd(4, at.x + i * kTileBytes, 64);
    _tile_loadd(6, at.w + i * kTileBytes, 64);
    _tile_loadd(7, at.w + kPanelBytes + i * kTileBytes, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
  }
  NIBBLE_KEEP(0, 0, 0);
  NIBBLE_KEEP(1, 0, 1);
}

// 16 rows, one panel.
void one_by_one(const At& at) {
  NIBBLE_SUM(0, 0, 0)
  for (std::int64_t i = 0; i < at.blocks; ++i) {
    _tile_loadd(4, at.x + i * kTileBytes, 64);
    _tile_loadd(6, at.w + i * kTileBytes, 64);
    _tile_dpbf16ps(0, 4, 6);
  }
  NIBBLE_KEEP(0, 0, 0);
}

#undef NIBBLE_SUM
#undef NIBBLE_KEEP

void products(const Bf16Block& b, std::int64_t panels, std::int64_t k0, std::int64_t count, const std::byte* weights,
              bool fresh, float* sums) {
  const std::int64_t tiles = (b.linear.rows + kTileRows - 1) / kTileRows;
  for (std::int64_t p = 0; p < panels; p += 2) {
    for (std::int64_t t = 0; t < tiles;) {
      const std::int64_t tile_bytes = kTileRows * b.x_bytes;
      const At at{b.x + t * tile_bytes + k0 / kBlock * kTileBytes, tile_bytes, weights + p * kPanelBytes,
                  (count + kBlock - 1) / kBlock, sums + (p * kMostRows + t * kTileRows) * kPanelRows, fresh};
      if (p + 1 == panels) {
        one_by_one(at);
        t += 1;
      } else if (t + 1 == tiles) {
        one_by_two(at);
        t += 1;
      } else {
        two_by_two(at);
        t += 2;
      }
    }
  }
}

void rows(const Bf16Block& b, std::int64_t panel_begin, std::int64_t panel_end, std::byte* scratch) {
  const Tiles tiles;
  const std::int64_t panels = panel_end - panel_begin;
  auto* const sums = reinterpret_cast<float*>(scratch + kPanels * kPanelBytes);
  const Totals totals(b, kMostRows, panel_begin, panels, sums, sums + kSums);
  for (std::int64_t begin = 0, index = 0; begin < b.linear.weight->cols; begin += b.chain, ++index) {
    const std::int64_t end = end_of_segment(b, begin);
    for (std::int64_t k0 = begin; k0 < end; k0 += kDepth) {
      const std::int64_t count = end - k0 < kDepth ? end - k0 : kDepth;
      for (std::int64_t p = 0; p < panels; ++p) {
        open(*b.linear.weight, panel_begin + p, k0, count, scratch + p * kPanelBytes);
      }
      products(b, panels, k0, count, scratch, k0 == begin, sums);
    }
    totals.take(index);
  }
  totals.finish();
}

constexpr Bf16Kernels kKernels{"tiles",   2,       kTileRows, 4, kMostRows, kPanels, kPanels * kPanelBytes + 2 * kSums * 4,
                               operand, rows};

}  // namespace

const Bf16Kernels& bf16_unit() {
  return kKernels;
}

}  // namespace nibble::cpu::NIBBLE_ISA
