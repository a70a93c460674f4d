// row_scale.h: rows of f16 with one power of two each: how profile sm70 keeps activations and weights.
//
//   value = h * 2^e in float32. Activations: e = max(0, ilogb(amax) - 14), so nothing overflows and small
//   rows are plain f16. Weights: e = ilogb(amax) - 14, down to -126, so that a row fills f16's range.
//   amax: the largest finite magnitude of the row (0 where there is none, which gives e = 0).
//   Infinities and NaN stay what they are and set no exponent.
#pragma once

#include "core/numerics/codecs.h"

namespace nibble::num {

constexpr int kMostRowExponent = 113;  // of a row with 2^127 in it

// Bits whose integer order is the order of magnitudes; 0 for what sets no exponent.
NIBBLE_HD std::uint32_t finite_magnitude(float v) {
  const std::uint32_t u = bit_cast<std::uint32_t>(v) & 0x7FFFFFFFu;
  return u < 0x7F800000u ? u : 0u;
}

NIBBLE_HD int activation_exponent(std::uint32_t amax) {
  const int e = static_cast<int>(amax >> 23) - 141;
  return e > 0 ? e : 0;
}

// Not below -126: 2^e and 2^-e are normal numbers.
NIBBLE_HD int weight_exponent(std::uint32_t amax) {
  const int e = static_cast<int>(amax >> 23) - 141;
  return amax == 0 ? 0 : e > -126 ? e : -126;
}

// e from -126 to 127.
NIBBLE_HD float power_of_two(int e) {
  return bit_cast<float>(static_cast<std::uint32_t>(e + 127) << 23);
}

// y * 2^-e loses nothing that f16 could hold.
NIBBLE_HD std::uint16_t weight_to_f16(float w, int e) { return float_to_f16(mul(w, power_of_two(-e))); }

// The same, and infinity where h * 2^e would be: 2^128, rounded up to from just below.
NIBBLE_HD std::uint16_t activation_to_f16(float y, int e) {
  const std::uint16_t h = float_to_f16(mul(y, power_of_two(-e)));
  const bool overflows = e == kMostRowExponent && (h & 0x7FFFu) == 0x7800u;
  return overflows ? static_cast<std::uint16_t>((h & 0x8000u) | 0x7C00u) : h;
}

NIBBLE_HD float row_f16_to_float(std::uint16_t h, int e) { return mul(f16_to_float(h), power_of_two(e)); }

}  // namespace nibble::num
