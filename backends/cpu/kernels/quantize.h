// quantize.h: one row of activations to the format that a checkpoint declares; contract:
// core/ops/ops.h Quantize. The largest magnitude of a group ignores NaN, so it does not depend on
// the order.
#pragma once

#include <cstdint>

#include "backends/cpu/isa.h"

namespace nibble::cpu {

struct QuantizeKernels {
  void (*nvfp4)(const float* x, std::int64_t cols, float scale, std::uint8_t* codes,
                std::uint8_t* scales);
  void (*fp8_tensor)(const float* x, std::int64_t cols, float scale, std::uint8_t* codes);
  // One scale for `cols` columns.
  void (*fp8_dynamic)(const float* x, std::int64_t cols, std::uint8_t* codes, float* scale);
};

NIBBLE_ON_EACH_ISA(const QuantizeKernels& quantize_kernels();)

}  // namespace nibble::cpu
