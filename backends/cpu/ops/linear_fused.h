// linear_fused.h: Linear of a mirrored profile: what docs/numerics.md says that matrix units compute.
//   x    [rows, cols] f32 that hold what the profile's operands can, or Quantize's codes and scales
//   y    [rows, weight rows] f32, not rounded yet
//   map  kFusedOperandRows rows at a time as operands in the caller's workspace; then a grid of (rows,
//        panels) over threads; which thread gets what changes no bit
#pragma once

#include "backends/cpu/mirror.h"
#include "backends/cpu/ops/linear.h"
#include "core/numerics/matrix_order.h"

namespace nibble::cpu {

struct FusedKernels;
const FusedKernels& fused_kernels(Isa isa);

// The segments of a weight: scales that change along K make every 128 columns one.
num::Segments fused_segments(const PackedWeight& weight, const ActivationFormat& format, bool fp8_unit);

// Whether the block-scaled FP4 unit multiplies these.
bool uses_fp4(Profile profile, WeightFormat weight, const ActivationFormat& x);

constexpr std::int64_t kFusedOperandRows = 64;

// Enough for any call with up to `max_rows` rows and `cols` columns, quantised or not.
std::int64_t linear_fused_workspace_bytes(std::int64_t max_rows, std::int64_t cols);

// The weight is packed with weight_operand(profile); sm70 wants x_exponents for x that is not quantised.
void linear_fused(Profile profile, Isa isa, Parallel& parallel, const LinearArgs& args);

}  // namespace nibble::cpu
