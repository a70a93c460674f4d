// packed_weight.h: the one image of a weight in memory. Linear, Embed and a tied head read the
// same.
//
// Layout::panels: rows are cut into panels of 16 (the last one padded with zeros), so that a vector holds one k of
// sixteen outputs and k is walked in ascending order. Every panel starts at a multiple of 64 bytes.
//   f32, f16, bf16, fp8   k-steps of 16 elements, row order
//   nvfp4                 groups of 64 k: 64 e4m3 scale bytes (16-k block major, 16 rows each),
//   then 16
//                         chunks of 32 bytes; a chunk holds 4 k-steps of 16 codes (nibble_at)
// Layout::rows: the bytes of the weight itself, where they are (a mapped file); they may be unaligned. The arena
// holds alpha and block only. Bits of ops do not depend on the layout.
//
// Formats stay what they are, but for the mirror of a 16-bit profile: its matrix units take unquantised
// weights in one 16-bit format (WeightOperand), which Linear and Embed read both.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/isa.h"
#include "backends/cpu/parallel.h"
#include "core/checkpoint/weight.h"
#include "core/numerics/scalar.h"

namespace nibble::cpu {

constexpr int kPanelRows = 16;
constexpr int kSegment = 128;  // k of one chain: the contract of Linear
constexpr int kScaleBlock = 128;
constexpr int kNvfp4Group = 64, kNvfp4GroupBytes = 64 + 64 * kPanelRows / 2, kNvfp4ChunkBytes = 32;

// Where the code of k-step j (0..3) and row r lies in a chunk, counted in nibbles, low nibble
// first.
//   bytes   two byte shuffles and an unpack give bf16 pairs whose even members are rows 0..7
//   words   16 bits for each row: a shift and a 16-entry permute (AVX-512) give a whole k-step
enum class NibbleOrder : std::uint8_t { bytes, words };

NIBBLE_HD constexpr int nibble_at(NibbleOrder order, int j, int r) {
  if (order == NibbleOrder::words) return r * 4 + j;
  const int byte = (r % 8 / 4) * 16 + (j % 2) * 8 + (r % 4) * 2 + r / 8;
  return byte * 2 + j / 2;
}

// What f32, f16 and bf16 are packed as.
//   bf16   rounded to nearest even
//   f16    rows of h * 2^e (core/numerics/row_scale.h); alpha takes the 2^e
enum class WeightOperand : std::uint8_t { stored, bf16, f16 };

enum class Layout : std::uint8_t { panels, rows };

struct PackedWeight {
  WeightFormat format = WeightFormat::f32;  // of the codes here
  Layout layout = Layout::panels;
  NibbleOrder order = NibbleOrder::bytes;  // of Layout::panels
  std::int64_t rows = 0, cols = 0;
  std::int64_t order_rows = 0;                 // Weight's
  std::int64_t panels = 0, panel_bytes = 0;    // Layout::rows: 16 rows, which the last panel may lack
  const std::byte* codes = nullptr;            // [panels, panel_bytes]; Layout::rows: Weight::codes
  const std::byte* block_scales = nullptr;     // Layout::rows: Weight::block_scales
  const float* alpha = nullptr;      // [panels * 16]: tensor or row scale, 1 for none and block128;
                                     // WeightOperand::f16: times 2^e
  const float* block = nullptr;      // block128: [ceil(rows / 128), ceil(cols / 128)], else null
  std::uint64_t bytes = 0;           // of the arena
};

NibbleOrder nibble_order(Isa isa);

// Whether Layout::rows can serve: the bytes are those of a file, and the operand's.
bool usable_in_place(const Weight& weight, WeightOperand operand = WeightOperand::stored);

// Bytes of the arena that pack() fills. Throws Error(unsupported / bad_file) for a weight whose
// shape, format and scales do not fit together; looks at the shape only, so codes may be absent
// still.
std::uint64_t packed_bytes(const Weight& weight, WeightOperand operand = WeightOperand::stored,
                           Layout layout = Layout::panels);

// Throws Error(bad_file) for codes or block scales whose bytes do not fill the shape.
void expect_sizes(const Weight& weight);

// `arena` is aligned to 64 bytes and holds packed_bytes(weight, operand, layout). The weight is not needed
// afterwards, but for the bytes of one that stays in place (Layout::rows).
PackedWeight pack(const Weight& weight, std::byte* arena, Parallel& parallel, NibbleOrder order,
                  WeightOperand operand = WeightOperand::stored, Layout layout = Layout::panels);

}  // namespace nibble::cpu
