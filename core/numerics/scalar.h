// scalar.h: the arithmetic that every profile shares, written once for host and device.
//
// Only IEEE add, mul, fma, div and sqrt, each rounded to nearest even, through wrappers that no
// compiler contracts. The same bits come out of GCC, clang, nvcc and NVRTC at any optimisation level
// (given -ffp-contract=off / -fmad=false), on any width of vector unit. NaN payloads are not part of
// the promise; every other bit is.
//
// Always inlined: one file is compiled for several instruction sets, and a shared copy of a
// function would carry one set's instructions into another's code.
#pragma once

#include <cstdint>

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define NIBBLE_HD __host__ __device__ __forceinline__
#else
#define NIBBLE_HD inline __attribute__((always_inline))
#endif

namespace nibble::num {

template <class To, class From>
NIBBLE_HD To bit_cast(From v) {
  static_assert(sizeof(To) == sizeof(From));
  To r;
  __builtin_memcpy(&r, &v, sizeof r);
  return r;
}

#if defined(__CUDA_ARCH__)
NIBBLE_HD float add(float a, float b) { return __fadd_rn(a, b); }
NIBBLE_HD float sub(float a, float b) { return __fsub_rn(a, b); }
NIBBLE_HD float mul(float a, float b) { return __fmul_rn(a, b); }
NIBBLE_HD float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
NIBBLE_HD float div(float a, float b) { return __fdiv_rn(a, b); }
NIBBLE_HD float sqrt(float a) { return __fsqrt_rn(a); }
#else
NIBBLE_HD float add(float a, float b) { return a + b; }
NIBBLE_HD float sub(float a, float b) { return a - b; }
NIBBLE_HD float mul(float a, float b) { return a * b; }
NIBBLE_HD float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
NIBBLE_HD float div(float a, float b) { return a / b; }
NIBBLE_HD float sqrt(float a) { return __builtin_sqrtf(a); }
#endif

// a > b ? a : b: unlike fmax, one rule for NaN and for zeros of different sign everywhere.
NIBBLE_HD float max(float a, float b) { return a > b ? a : b; }
NIBBLE_HD float min(float a, float b) { return a < b ? a : b; }
NIBBLE_HD float abs(float a) { return bit_cast<float>(bit_cast<std::uint32_t>(a) & 0x7FFFFFFFu); }

NIBBLE_HD float rsqrt(float a) { return div(1.0f, sqrt(a)); }

namespace detail {
// 2^f for |f| <= 1/2 without its factor 2^n, minimax of degree 6 with the constant term exactly 1.
NIBBLE_HD float exp2_poly(float f) {
  float p = 0x1.41fbaep-13f;
  p = fma(p, f, 0x1.5f3e52p-10f);
  p = fma(p, f, 0x1.3b2d4ep-7f);
  p = fma(p, f, 0x1.c6aee8p-5f);
  p = fma(p, f, 0x1.ebfbdcp-3f);
  p = fma(p, f, 0x1.62e43p-1f);
  return fma(p, f, 1.0f);
}
constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
NIBBLE_HD float scale_by_pow2(float p, float t) {
  return bit_cast<float>(bit_cast<std::uint32_t>(p) + (bit_cast<std::uint32_t>(t) << 23));
}
}  // namespace detail

// 2^x. x < -126 gives 0, x >= 127.5 gives +inf; at most 0.95 ulp between. exp2(0) is exactly 1.
NIBBLE_HD float exp2(float x) {
  const float t = add(x, detail::kRound);
  const float f = sub(x, sub(t, detail::kRound));
  const float r = detail::scale_by_pow2(detail::exp2_poly(f), t);
  const float low = x < -126.0f ? 0.0f : r;
  return x >= 127.5f ? bit_cast<float>(0x7F800000u) : (x != x ? x : low);
}

// e^x with the reduction x = (n + f) ln 2 in two pieces, so that |x| does not cost bits.
// x < -87.3 gives 0, x > 88.37 gives +inf; at most 1.15 ulp between (seen: 1.13).
NIBBLE_HD float exp(float x) {
  constexpr float kHi = 0x1.715476p+0f;    // log2(e) rounded to float
  constexpr float kLo = 0x1.4ae0cp-26f;    // the rest of it
  const float t = fma(x, kHi, detail::kRound);
  const float n = sub(t, detail::kRound);
  const float f = fma(x, kLo, fma(x, kHi, -n));
  const float r = detail::scale_by_pow2(detail::exp2_poly(f), t);
  const float low = x < -87.3f ? 0.0f : r;
  return x > 88.37f ? bit_cast<float>(0x7F800000u) : (x != x ? x : low);
}

// log(1 + y) for 0 <= y <= 1: 2 atanh(s), s = y / (2 + y), odd series in s (s^2 <= 1/9).
// At most 1.95 ulp.
NIBBLE_HD float log1p_unit(float y) {
  const float s = div(y, add(2.0f, y));
  const float q = mul(s, s);
  float p = div(1.0f, 17.0f);
  p = fma(p, q, div(1.0f, 15.0f));
  p = fma(p, q, div(1.0f, 13.0f));
  p = fma(p, q, div(1.0f, 11.0f));
  p = fma(p, q, div(1.0f, 9.0f));
  p = fma(p, q, div(1.0f, 7.0f));
  p = fma(p, q, 0.2f);
  p = fma(p, q, div(1.0f, 3.0f));
  const float s2 = add(s, s);
  return fma(mul(s2, q), p, s2);
}

// At most 2.4 ulp each.
NIBBLE_HD float sigmoid(float x) { return div(1.0f, add(1.0f, exp(-x))); }
NIBBLE_HD float silu(float x) { return div(x, add(1.0f, exp(-x))); }

// log(1 + e^x), linear above 20 (torch's threshold): max(x, 0) + log1p(e^-|x|). At most 2.6 ulp.
NIBBLE_HD float softplus(float x) {
  const float y = add(max(x, 0.0f), log1p_unit(exp(-abs(x))));
  return x > 20.0f ? x : y;
}

}  // namespace nibble::num
