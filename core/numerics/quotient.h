// quotient.h: reciprocals, quotients, silu's denominator and e2m1 codes in few operations and without branches, for
// kernels in which IEEE division would be most of the work. Same bits as scalar.h and codecs.h in the ranges named.
//
// Why the quotient is exact: q = RN(a y) lies within 1.5 ulp of a / b, fma leaves its residual, and the corrected sum
// could round wrongly only where a / b is within 5 / (2 b) ulp of a midpoint (b: as an integer of 24 bits). The test
// goes through all pairs of a and b within 12 / (2 b); all others follow from the error's bound.
#pragma once

#include "core/numerics/codecs.h"

namespace nibble::num {

// 1 / b from a y at most one ulp away, such that quotient() is exact: RN(1 / b), but for one mantissa. The small term
// breaks the tie in which a plain step would end where b's fraction is all ones.
NIBBLE_HD float refined(float b, float y) { return fma(add(fma(-b, y, 1.0f), 0x1p-47f), y, y); }

// div(a, b) from y = refined(b, ...), the sign of a zero included. Exact for b from 2^-90 to 2^90 and |a| from 2^-100
// up to where a * y is finite, as long as a / b is normal; smaller a give a quotient that no code but 0 belongs to.
NIBBLE_HD float quotient(float a, float b, float y) {
  const float q = mul(a, y);
  return fma(fma(b, q, -a), -y, q);  // the residual's sign this way round: -0 stays -0
}

// Divisors within which kernels may take quotient() for codes, and the |a| (exclusive) that go with one; 0: none.
NIBBLE_HD float quotient_limit(float b) {
  if (!(b >= 0x1p-60f && b <= 0x1p60f)) return 0.0f;
  return mul(b, 0x1p60f);
}

#if defined(__CUDA_ARCH__)
NIBBLE_HD float least(float a, float b) { return ::fminf(a, b); }
NIBBLE_HD float most(float a, float b) { return ::fmaxf(a, b); }
NIBBLE_HD float magnitude(float a) { return ::fabsf(a); }  // an operand's modifier
#else
NIBBLE_HD float least(float a, float b) { return a < b ? a : b; }  // the constant b, where a is NaN
NIBBLE_HD float most(float a, float b) { return a > b ? a : b; }
NIBBLE_HD float magnitude(float a) { return abs(a); }
#endif

// add(1, exp(-x)) for x from kSiluLeast up (1 for NaN): above 40 the sum is 1, so exp needs none of its guards.
constexpr float kSiluLeast = -80.0f;
NIBBLE_HD float silu_denominator(float x) {
  constexpr float kHi = 0x1.715476p+0f, kLo = 0x1.4ae0cp-26f;  // as in exp
  const float v = -least(x, 40.0f);
  const float t = fma(v, kHi, detail::kRound), n = sub(t, detail::kRound);
  const float f = fma(v, kLo, fma(v, kHi, -n));
  return add(1.0f, detail::scale_by_pow2(detail::exp2_poly(f), t));
}

// silu(x) for bf16 x from kSiluLeast up, not infinite; y: at most one ulp from 1 / silu_denominator(x).
NIBBLE_HD float silu_by(float x, float denominator, float y) {
  return quotient(x, denominator, refined(denominator, y));
}

// Low 16 bits: float_to_e2m1(|v|) of 8 v that is not NaN. Bits above are left over, so that codes can be put together
// by shifts and additions.
//   With p the power of two below |v|, at least 1, steps are p / 2: adding p * 2^22 rounds to a multiple n, ties to
//   even, and leaves it in the low bits. The code is n + 2 log2(p), and exponent bits are two places up at bit 22;
//   the rest of the factor cancels the exponent's bias of 8 v.
NIBBLE_HD std::uint32_t e2m1_low16(float v8) {
  const float a = least(magnitude(v8), 48.0f);
  const float p = bit_cast<float>(bit_cast<std::uint32_t>(most(a, 8.0f)) & 0x7F800000u);
  const std::uint32_t r = bit_cast<std::uint32_t>(fma(p, 0x1p22f + 32616.0f, a));
  return r + (r >> 22);
}

}  // namespace nibble::num
