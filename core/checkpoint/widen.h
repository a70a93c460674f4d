// widen.h: F32, F16 and BF16 elements as floats, exactly.
#pragma once

#include <cstdint>
#include <vector>

#include "core/checkpoint/tensor_info.h"

namespace nibble {

float widen_f16(std::uint16_t bits);
float widen_bf16(std::uint16_t bits);

bool can_widen(DType dtype);                    // F32, F16 or BF16
std::vector<float> widen(const TensorInfo& t);  // the caller has asked can_widen

}  // namespace nibble
