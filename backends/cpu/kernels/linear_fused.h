// linear_fused.h: the inner loops of Linear in a mirrored profile: fused sums of matrix units instead
// of chains; order: core/numerics/matrix_order.h. Segments enter the total and leave it as in linear.h.
#pragma once

#include <cstdint>

#include "backends/cpu/kernels/linear.h"

namespace nibble::cpu {

constexpr int kFusedRows = 16;  // at most this many in one call: they share the first-level cache

// K is padded with zeros to whole groups of this many; a multiple of every profile's group.
constexpr int kFusedGroup = 16;

struct FusedBlock {
  LinearBlock linear;            // x as operand() leaves it
  const std::int32_t* exponents;  // [rows, x_stride], operand()'s
  std::int64_t segment;           // k of one segment, a multiple of 64
};

struct FusedKernels {
  // One row of bf16-representable values to what the loops read; both rows padded with zeros to a
  // multiple of kFusedGroup.
  void (*operand)(const float* x, std::int64_t count, float* to, std::int32_t* exponents);
  void (*sm90)(const FusedBlock& block, std::int64_t panel_begin, std::int64_t panel_end);
  // For tests: one row over a bare panel, k <= 128 and a multiple of the group.
  //   a [k], b [k, 16], c [16] in and out
  void (*chain_sm90)(const float* a, const float* b, std::int64_t k, float* c);
  void (*chain_sm70)(const float* a, const float* b, std::int64_t k, float* c);
};

NIBBLE_ON_EACH_ISA(const FusedKernels& fused_kernels();)

}  // namespace nibble::cpu
