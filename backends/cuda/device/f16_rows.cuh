// f16_rows.cuh: rows of f16 with one exponent (docs/numerics.md, sm70).
#pragma once

#include <cstdint>

#include "core/numerics/codecs.h"

namespace nibble::cuda {

// Bits of |v|; 0 for what has no part in a row's largest.
NIBBLE_HD std::uint32_t finite_magnitude(float v) {
  const std::uint32_t bits = num::bit_cast<std::uint32_t>(v) & 0x7FFFFFFFu;
  return bits < 0x7F800000u ? bits : 0u;
}
// ilogb(amax) - 14, amax not 0; far below any bound for subnormals, which need no more exact an answer.
NIBBLE_HD int exponent_above_f16(std::uint32_t amax) { return static_cast<int>(amax >> 23) - 127 - 14; }

NIBBLE_HD int buffer_exponent(std::uint32_t amax) {
  const int e = exponent_above_f16(amax);
  return e > 0 ? e : 0;
}
NIBBLE_HD int weight_exponent(std::uint32_t amax) {
  if (amax == 0) return 0;
  const int e = exponent_above_f16(amax);
  return e > -126 ? e : -126;
}

NIBBLE_HD float power_of_two(int e) {  // -126 <= e <= 127
  return num::bit_cast<float>(static_cast<std::uint32_t>(e + 127) << 23);
}
NIBBLE_HD std::uint16_t to_row_f16(float v, int e) {
  return num::float_to_f16(num::mul(v, power_of_two(-e)));
}
NIBBLE_HD float from_row_f16(std::uint16_t h, int e) {
  return num::mul(num::f16_to_float(h), power_of_two(e));
}

}  // namespace nibble::cuda
