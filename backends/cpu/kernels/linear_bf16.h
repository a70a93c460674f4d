// linear_bf16.h: the inner loops of Linear in profile bf16. Order: core/numerics/bf16_order.h, K in segments of `chain`
// columns; segments, alpha and activation scales as in linear.h.
//
// One table for each instruction set multiplies by fma (bf16_fma), and processors with a unit for bf16 have another
// (backends/cpu/units). Tables differ in speed and in the form of x's operands; the bits are the same.
#pragma once

#include <cstdint>

#include "backends/cpu/kernels/linear.h"

namespace nibble::cpu {

struct Bf16Block {
  LinearBlock linear;     // x, x_stride: not used
  const std::byte* x;     // operands in the table's form, x_bytes for each row; the first of a tile_rows
  std::int64_t x_bytes;   // from row to row
  std::int64_t chain;     // a multiple of kSegment, or all of K: columns of a segment
};

struct Bf16Kernels {
  const char* name;            // "tiles"
  std::int64_t element_bytes;  // of an operand of x; rows of operands are padded with zeros to whole kBf16Block
  std::int64_t tile_rows;      // rows of operands that are read (not used) beyond the last: up to a multiple of it
  std::int64_t least_rows;     // below that bf16_fma serves
  std::int64_t block_rows;     // at most so many rows in one call, a multiple of tile_rows
  std::int64_t group_panels;   // at most so many panels
  std::int64_t scratch_bytes;  // of each thread
  // Writes row `row` of operands that begin at `all`.
  void (*operand)(const float* x, std::int64_t count, std::int64_t row, std::int64_t row_bytes, std::byte* all);
  void (*rows)(const Bf16Block& block, std::int64_t panel_begin, std::int64_t panel_end, std::byte* scratch);
};

NIBBLE_ON_EACH_ISA(const Bf16Kernels& bf16_fma();)
namespace avx512_bf16 {
const Bf16Kernels& bf16_unit();
}
namespace amx {
const Bf16Kernels& bf16_unit();
}

}  // namespace nibble::cpu
