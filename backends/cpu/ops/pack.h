// pack.h: a norm or SwiGLU and the Quantize behind it, one pass over each row; contract: core/ops/ops.h
// Packed. The row goes through a piece of workspace that stays in the cache, or through y where
// somebody reads it.
#pragma once

#include <cstdint>

#include "backends/cpu/mirror.h"
#include "backends/cpu/ops/quantize.h"
#include "backends/cpu/ops/rowwise.h"

namespace nibble::cpu {

struct PackArgs {
  QuantizeArgs to;                      // rows, cols, format, codes and scales; x is not looked at
  DType operand = DType::f32;           // what y is rounded to before it is quantised
  Out y{nullptr, 0};                    // float32; may be null, else not an input
  std::int32_t* exponents = nullptr;    // f16 with y: of y's rows
  std::byte* workspace = nullptr;       // pack_workspace_bytes(), aligned to 64; unused with y
};

std::int64_t pack_workspace_bytes(std::int64_t cols, int threads);

void rms_norm_pack(Isa isa, Parallel& parallel, In x, const float* weight, float eps,
                   const PackArgs& args);
void add_rms_norm_pack(Isa isa, Parallel& parallel, const SumArgs& sum, const float* weight, float eps,
                       const PackArgs& args);
void gated_rms_norm_pack(Isa isa, Parallel& parallel, std::int64_t group, In x, In z,
                         const float* weight, float eps, const PackArgs& args);
void swiglu_pack(Isa isa, Parallel& parallel, In gate, In up, const PackArgs& args);

}  // namespace nibble::cpu
