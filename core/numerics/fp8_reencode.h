// fp8_reencode.h: an NVFP4 matrix as e4m3 codes with one scale (mode a8).
//
//   operand = e2m1 code * block scale, exact in float32; amax: its largest magnitude in the matrix
//   scale   = 6 * 2^k, k the least integer with amax <= 448 * scale, so that nothing saturates (0 where amax is 0)
//   code8   = e4m3(operand / scale), one float32 division, then to nearest even
//   alpha   = (tensor or row scale) * scale, one float32 multiplication
//
// Why 6: most blocks hold a code of +-6, and 6 * block scale / (6 * 2^k) is a block scale again: exact, as are 3 and
// 1.5. A power of two would round those.
#pragma once

#include "core/numerics/codecs.h"

namespace nibble::num {

// amax is finite and a product of a code and a block scale: 0 or at least 2^-10.
NIBBLE_HD int fp8_scale_exponent(float amax) {
  const std::uint32_t u = bit_cast<std::uint32_t>(amax);
  constexpr std::uint32_t kMostSignificand = 0x280000u;  // 448 * 6 = 1.3125 * 2^11
  if (u == 0) return 0;
  return static_cast<int>(u >> 23) - 127 - 11 + ((u & 0x7FFFFFu) > kMostSignificand ? 1 : 0);
}

NIBBLE_HD float fp8_scale(int k) {
  return mul(6.0f, bit_cast<float>(static_cast<std::uint32_t>(k + 127) << 23));
}

NIBBLE_HD float nvfp4_operand(std::uint8_t code, std::uint8_t block_scale) {
  return mul(e2m1_to_float(code), e4m3_to_float(block_scale));
}

NIBBLE_HD std::uint8_t nvfp4_to_e4m3(std::uint8_t code, std::uint8_t block_scale, float scale) {
  return float_to_e4m3(div(nvfp4_operand(code, block_scale), scale));
}

}  // namespace nibble::num
