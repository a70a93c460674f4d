// linear_bf16.h: Linear of profile bf16. Order and rounding: core/numerics/bf16_order.h; K is one segment, or segments of
// 128 where scales change along it (128x128 weight blocks, activations scaled in groups of 128).
//   x    [rows, cols] f32, rounded to bf16 here, or Quantize's codes and scales, exact in bf16
//   y    [rows, weight rows] f32
//   map  kBf16OperandRows rows at a time as operands in the caller's workspace; then a grid of (rows, panels) over
//        threads; neither that nor the unit that multiplies changes a bit
#pragma once

#include "backends/cpu/bf16_unit.h"
#include "backends/cpu/ops/linear.h"

namespace nibble::cpu {

constexpr std::int64_t kBf16OperandRows = 1024;

// Enough for any call with up to `max_rows` rows and `cols` columns.
std::int64_t linear_bf16_workspace_bytes(const Kernels& kernels, int threads, std::int64_t max_rows, std::int64_t cols);

// The weight is packed with WeightOperand::bf16.
void linear_bf16(const Kernels& kernels, Parallel& parallel, const LinearArgs& args);

}  // namespace nibble::cpu
