// linear.h: the inner loops of Linear and Embed over panels of a packed weight.
//   y[t, n] = (sum over segments of chains) * alpha[n] * row scale[t]; order: core/ops/ops.h
// few_rows decodes weights on the way to the fma; many_rows decodes a block of a panel into the
// first-level cache and runs a register tile over the rows. Both give the same bits.
#pragma once

#include <cstdint>

#include "backends/cpu/packed_weight.h"

namespace nibble::cpu {

constexpr int kFewRows = 4;      // at most this many rows for few_rows
constexpr int kBlockRows = 144;  // at most this many for many_rows: 12 tiles of 12, 24 of 6
constexpr int kGroupPanels =
    4;  // panels that many_rows takes over the same rows before the next segment

struct LinearBlock {
  const PackedWeight* weight;
  const float* x;  // [rows, cols] the operand
  std::int64_t x_stride;
  std::int64_t rows;
  const float* group_scale;  // [rows, segments] scale of each segment's sum, or null
  std::int64_t group_stride;
  const float* row_scale;  // [rows] or null
  float tensor_scale;      // used where row_scale is null; 1 for unquantised x
  float* y;                // [rows, weight rows]
  std::int64_t y_stride;
  float weight_unit = 1, alpha_unit = 1;  // powers of two that a profile takes operands and alpha by
};

struct LinearKernels {
  void (*few_rows)(const LinearBlock& block, std::int64_t panel_begin, std::int64_t panel_end);
  void (*many_rows)(const LinearBlock& block, std::int64_t panel_begin, std::int64_t panel_end);
  // Operand rows of quantised activations, [rows, cols] from packed codes.
  void (*decode_nvfp4)(const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t cols,
                       float* x);
  void (*decode_fp8)(const std::uint8_t* codes, std::int64_t cols, float* x);
};

NIBBLE_ON_EACH_ISA(const LinearKernels& linear_kernels();)

}  // namespace nibble::cpu
