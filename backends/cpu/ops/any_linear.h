// any_linear.h: Linear in the profile at hand.
#pragma once

#include "backends/cpu/bf16_unit.h"
#include "backends/cpu/mirror.h"
#include "backends/cpu/ops/linear.h"

namespace nibble::cpu {

// Enough for any call with up to `max_rows` rows, `cols` columns and inputs of that format; threads: of Parallel.
std::int64_t any_linear_workspace_bytes(Profile profile, const Kernels& kernels, int threads, std::int64_t max_rows,
                                        std::int64_t cols, const ActivationFormat& format);

// The weight is packed with weight_operand(profile).
void any_linear(Profile profile, const Kernels& kernels, Parallel& parallel, const LinearArgs& args);

}  // namespace nibble::cpu
