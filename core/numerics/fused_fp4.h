// fused_fp4.h: one fused sum of the block-scaled FP4 unit (mma kind::mxf4nvf4, e2m1 codes, ue4m3 scales
// of 16), exactly: the scalar model that the mirror is tested against and that emulated instructions call.
// Rules: Valpey et al., MMA-Sim, arXiv 2511.10909; nobody has measured them here.
//
//   block b of 4       s = sum of 16 code products, exact;  term = s * sig(sa) * sig(sb) at e(sa) + e(sb),
//                      1 <= sig < 2, or sig < 1 and e = -6 for a subnormal scale
//   m                  the largest exponent among the blocks without a zero scale (where s is 0 too) and
//                      an accumulator that is not zero; none: the result is +0
//   S                  sum of trunc(term * 2^(35 - m)) and the accumulator's, exact
//   result             S * 2^(m - 35) truncated to float32, subnormals kept, infinity from 2^128; 0 is +0
//   scales             have no sign: bit 7 is not looked at (whoever loads weights refuses it);
//                      a NaN scale (0x7F) or accumulator gives NaN, 0x7FFFFFFF
//
// |s * sig * sig| is at most 518,400 units of 2^-8, so 64-bit integers suffice.
#pragma once

#include "core/numerics/fused_dot.h"

namespace nibble::num {

constexpr int kFp4Group = 64, kFp4Block = 16, kFp4FractionBits = 35;

namespace detail {

// Twice the value of the lowest code.
NIBBLE_HD std::int32_t twice_e2m1(std::uint32_t code) {
  const auto m = static_cast<std::int32_t>(0xC8643210u >> ((code & 7u) * 4u) & 15u);
  return (code & 8u) != 0 ? -m : m;
}

// In units of 1 / 8; 0 for a zero scale.
NIBBLE_HD std::int32_t scale_sig(std::uint32_t byte) {
  return static_cast<std::int32_t>((byte & 7u) | ((byte & 0x78u) != 0 ? 8u : 0u));
}
NIBBLE_HD int scale_exponent(std::uint32_t byte) {
  const int field = static_cast<int>(byte >> 3 & 15u);
  return (field > 1 ? field : 1) - 7;
}
NIBBLE_HD bool scale_nan(std::uint32_t byte) { return (byte & 0x7Fu) == 0x7Fu; }

}  // namespace detail

// The fused sum of four blocks and c, from each block's sum of code products in units of 1/4.
NIBBLE_HD float fused_fp4_blocks(const std::int32_t* block_sums, std::uint32_t a_scales, std::uint32_t b_scales,
                                 float c) {
  using namespace detail;
  constexpr int kNone = -100000, F = kFp4FractionBits;
  const std::uint32_t c_bits = bit_cast<std::uint32_t>(c);
  bool nan = is_nan(c_bits);
  int m = is_zero(c_bits) ? kNone : split<-126>(c_bits).e;
  for (int block = 0; block < 4; ++block) {
    const std::uint32_t x = a_scales >> (8 * block), y = b_scales >> (8 * block);
    if (scale_nan(x) || scale_nan(y)) nan = true;
    const int e = scale_exponent(x) + scale_exponent(y);
    if (scale_sig(x) != 0 && scale_sig(y) != 0 && e > m) m = e;
  }
  if (nan) return bit_cast<float>(0x7FFFFFFFu);
  if (is_inf(c_bits)) return c;
  if (m == kNone) return 0.0f;

  std::int64_t sum = 0;
  if (!is_zero(c_bits)) {
    const SigExp v = split<-126>(c_bits);
    const auto part = static_cast<std::int64_t>(shifted(v.sig, F - 23 + v.e - m));
    sum = c_bits >> 31 == 0 ? part : -part;
  }
  for (int block = 0; block < 4; ++block) {
    const std::uint32_t x = a_scales >> (8 * block), y = b_scales >> (8 * block);
    const std::int32_t term = block_sums[block] * scale_sig(x) * scale_sig(y);
    if (term == 0) continue;  // a zero scale's exponent may lie above m
    const int by = F - 8 + scale_exponent(x) + scale_exponent(y) - m;
    const auto part = static_cast<std::int64_t>(
        shifted(static_cast<std::uint64_t>(term < 0 ? -std::int64_t{term} : term), by));
    sum += term < 0 ? -part : part;
  }
  const bool negative = sum < 0;
  return truncated<24>(static_cast<std::uint64_t>(negative ? -sum : sum), m - F, negative);
}

// a, b: eight words of eight codes, ascending k from the lowest bits; scales: byte b for block b.
NIBBLE_HD float fused_fp4(const std::uint32_t* a, const std::uint32_t* b, std::uint32_t a_scales,
                          std::uint32_t b_scales, float c) {
  std::int32_t sums[4];
  for (int block = 0; block < 4; ++block) {
    sums[block] = 0;
    for (int k = 0; k < kFp4Block; ++k) {
      const int word = 2 * block + k / 8, at = 4 * (k % 8);
      sums[block] += detail::twice_e2m1(a[word] >> at) * detail::twice_e2m1(b[word] >> at);
    }
  }
  return fused_fp4_blocks(sums, a_scales, b_scales, c);
}

}  // namespace nibble::num
