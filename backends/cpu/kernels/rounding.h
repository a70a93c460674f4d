// rounding.h: float32 rows to the values that bf16, or f16 with a row exponent, can hold.
#pragma once

#include <cstdint>

#include "backends/cpu/isa.h"

namespace nibble::cpu {

struct RoundingKernels {
  void (*bf16)(float* row, std::int64_t cols);
  std::int32_t (*f16)(float* row, std::int64_t cols);  // returns the exponent
};

NIBBLE_ON_EACH_ISA(const RoundingKernels& rounding_kernels();)

}  // namespace nibble::cpu
