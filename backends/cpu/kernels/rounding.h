// rounding.h: float32 rows to the values that bf16, or f16 with a row exponent, can hold; columns of a panel to f16.
#pragma once

#include <cstdint>

#include "backends/cpu/isa.h"

namespace nibble::cpu {

struct RoundingKernels {
  void (*bf16)(float* row, std::int64_t cols);
  std::int32_t (*f16)(float* row, std::int64_t cols);  // returns the exponent
  // Of each column of a panel [rows, 16]: 2^-e and 2^e, e as num::weight_exponent has it.
  void (*column_powers)(const float* panel, std::int64_t rows, float* down, float* up);
  // num::weight_to_f16 of a panel's columns: times 2^-e, to f16's values, and left there.
  void (*f16_columns)(float* panel, std::int64_t rows, const float* down);
};

NIBBLE_ON_EACH_ISA(const RoundingKernels& rounding_kernels();)

}  // namespace nibble::cpu
