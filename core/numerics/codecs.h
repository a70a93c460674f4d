// codecs.h: bf16, f16, e4m3 and e2m1, to and from float32; encoding rounds to nearest even.
//
//   e2m1  bit 3 sign; magnitudes 0 .5 1 1.5 2 3 4 6; saturates at 6; midpoints go to the even code.
//         NaN has no code: it becomes 0, whatever its sign.
//   e4m3  bias 7, no infinity, 0x7F and 0xFF are NaN, largest 448, smallest subnormal 2^-9;
//         saturates at 448 (infinities too), NaN becomes 0x7F, whatever its sign: processors make
//         NaN with different signs, and codes are compared as bytes.
#pragma once

#include "core/numerics/scalar.h"

namespace nibble::num {

NIBBLE_HD float bf16_to_float(std::uint16_t h) {
  return bit_cast<float>(static_cast<std::uint32_t>(h) << 16);
}

NIBBLE_HD std::uint16_t float_to_bf16(float v) {
  const std::uint32_t u = bit_cast<std::uint32_t>(v);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((u >> 16) | 0x40u);
  return static_cast<std::uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

NIBBLE_HD float f16_to_float(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t rest = h & 0x7FFFu;
  if (rest >= 0x7C00u) return bit_cast<float>(sign | 0x7F800000u | ((rest & 0x3FFu) << 13));
  if (rest >= 0x400u) return bit_cast<float>(sign | ((rest << 13) + (112u << 23)));
  // subnormal: the integer times 2^-24 is exact
  return bit_cast<float>(bit_cast<std::uint32_t>(mul(static_cast<float>(rest), 0x1p-24f)) | sign);
}

NIBBLE_HD std::uint16_t float_to_f16(float v) {
  const std::uint32_t u = bit_cast<std::uint32_t>(v);
  const std::uint32_t sign = (u >> 16) & 0x8000u, a = u & 0x7FFFFFFFu;
  if (a > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u);
  if (a >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // rounds to infinity
  if (a < 0x38800000u) {  // subnormal: let the adder round at 2^-24
    const float r = add(bit_cast<float>(a), 0.5f);
    return static_cast<std::uint16_t>(sign | (bit_cast<std::uint32_t>(r) - 0x3F000000u));
  }
  return static_cast<std::uint16_t>(sign | ((a + 0xFFFu + ((a >> 13) & 1u) - (112u << 23)) >> 13));
}

NIBBLE_HD float e4m3_to_float(std::uint8_t b) {
  const std::uint32_t sign = static_cast<std::uint32_t>(b & 0x80u) << 24, rest = b & 0x7Fu;
  if (rest == 0x7Fu) return bit_cast<float>(sign | 0x7FC00000u);
  if (rest >= 8u) return bit_cast<float>(sign | ((rest << 20) + (120u << 23)));
  return bit_cast<float>(bit_cast<std::uint32_t>(mul(static_cast<float>(rest), 0x1p-9f)) | sign);
}

NIBBLE_HD std::uint8_t float_to_e4m3(float v) {
  const std::uint32_t u = bit_cast<std::uint32_t>(v);
  const std::uint32_t sign = (u >> 24) & 0x80u, a = u & 0x7FFFFFFFu;
  if (a > 0x7F800000u) return 0x7F;
  if (a >= 0x43E00000u) return static_cast<std::uint8_t>(sign | 0x7Eu);  // 448 and above
  if (a < 0x3C800000u) {  // below 2^-6: let the adder round at 2^-9
    const float r = add(bit_cast<float>(a), 16384.0f);
    return static_cast<std::uint8_t>(sign | (bit_cast<std::uint32_t>(r) - 0x46800000u));
  }
  // cannot carry past 448: 464 and more were cut above
  const std::uint32_t r = (a + 0x7FFFFu + ((a >> 20) & 1u) - (120u << 23)) >> 20;
  return static_cast<std::uint8_t>(sign | (r > 0x7Eu ? 0x7Eu : r));
}

NIBBLE_HD float e2m1_to_float(std::uint8_t code) {
  // twice the magnitudes 0 1 2 3 4 6 8 12, four bits each
  const std::uint32_t twice = (0xC8643210u >> ((code & 7u) * 4u)) & 15u;
  const float m = mul(static_cast<float>(twice), 0.5f);
  return bit_cast<float>(bit_cast<std::uint32_t>(m) | (static_cast<std::uint32_t>(code & 8u) << 28));
}

NIBBLE_HD std::uint8_t float_to_e2m1(float v) {
  const std::uint32_t u = bit_cast<std::uint32_t>(v);
  const float a = bit_cast<float>(u & 0x7FFFFFFFu);
  // midpoints .25 .75 1.25 1.75 2.5 3.5 5: a tie goes to the even code
  std::uint32_t code = 0;
  code += a > 0.25f;
  code += a >= 0.75f;
  code += a > 1.25f;
  code += a >= 1.75f;
  code += a > 2.5f;
  code += a >= 3.5f;
  code += a > 5.0f;
  return static_cast<std::uint8_t>(a == a ? code | ((u >> 28) & 8u) : 0u);
}

}  // namespace nibble::num
