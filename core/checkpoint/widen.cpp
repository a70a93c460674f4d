#include "core/checkpoint/widen.h"

#include <bit>
#include <cmath>

#include "nibble/error.h"

namespace nibble {

float widen_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

float widen_f16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 31u, fraction = bits & 1023u;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24
    const float v = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(v) | sign);
  }
  const std::uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

bool can_widen(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

std::vector<float> widen(const TensorInfo& t) {
  if (!can_widen(t.dtype)) {
    throw Error(ErrorCode::internal, "[widen] " + show_name(t.name) + " is " + dtype_name(t.dtype));
  }
  const std::size_t size = t.dtype == DType::f32 ? 4 : 2;
  std::vector<float> out(t.bytes.size() / size);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (t.dtype == DType::f32) {
      out[i] = load_le<float>(t.bytes, 4 * i);
    } else {
      const auto bits = load_le<std::uint16_t>(t.bytes, 2 * i);
      out[i] = t.dtype == DType::f16 ? widen_f16(bits) : widen_bf16(bits);
    }
  }
  return out;
}

}  // namespace nibble
