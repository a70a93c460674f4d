// fused_dot.h: one fused sum of a matrix unit, exactly: the scalar model that the mirror's fast loops
// fall back to, that tests compare with and that emulated instructions call. Rules: matrix_order.h.
//
//   sig * 2^e of a value: 1 <= sig < 2, or sig < 1 and e = the format's least exponent (subnormals)
//   term               sig_a * sig_b at e_a + e_b, not renormalised (so sig < 4); the accumulator c too
//   m                  the largest exponent among the terms that are not zero, but at least -133 (measured on
//                      an H200; only bf16 products beside a zero accumulator lie below); none: the result is +0
//   S                  sum of trunc(sig * 2^(F + e - m)), exact
//   result             S * 2^(m - F), truncated to `result_bits` significant bits, subnormals kept,
//                      infinity from 2^128; what truncates to zero is +0, whatever its sign was
//   NaN                for a NaN, 0 * inf and inf - inf; products of finite values are finite
//
// 64-bit integers suffice for every operand that a float holds: a product of significands has at most
// 48 bits and is only ever shifted right (F <= 46), so a sum of n terms stays below n * 2^(F + 2).
#pragma once

#include <cstdint>

#include "core/numerics/scalar.h"

namespace nibble::num {

// What a value is to an instruction: operands narrower than float32 have a higher least exponent.
constexpr int kBf16MinExponent = -126, kF16MinExponent = -14, kE4m3MinExponent = -6;

constexpr int kLeastAlignment = -133;  // the exponent of the least bf16

namespace detail {

struct SigExp {
  std::uint64_t sig;  // in units of 2^-23
  int e;
};

template <int MinExponent>
NIBBLE_HD SigExp split(std::uint32_t bits) {
  const int field = static_cast<int>((bits >> 23) & 255u);
  const std::uint64_t rest = bits & 0x7FFFFFu;
  SigExp v{field == 0 ? rest : rest | 0x800000u, field == 0 ? -126 : field - 127};
  if (MinExponent > -126 && v.e < MinExponent) {
    const int by = MinExponent - v.e;  // a subnormal of the format: exact
    v.sig = by > 63 ? 0 : v.sig >> by;
    v.e = MinExponent;
  }
  return v;
}

NIBBLE_HD int top_bit(std::uint64_t v) {
#if defined(__CUDA_ARCH__)
  return 63 - __clzll(static_cast<long long>(v));
#else
  return 63 - __builtin_clzll(v);
#endif
}

// v * 2^by, truncated; by is at most 40.
NIBBLE_HD std::uint64_t shifted(std::uint64_t v, int by) {
  if (by >= 0) return v << by;
  return by <= -64 ? 0 : v >> -by;
}

NIBBLE_HD bool is_inf(std::uint32_t bits) { return (bits & 0x7FFFFFFFu) == 0x7F800000u; }
NIBBLE_HD bool is_nan(std::uint32_t bits) { return (bits & 0x7FFFFFFFu) > 0x7F800000u; }
NIBBLE_HD bool is_zero(std::uint32_t bits) { return (bits & 0x7FFFFFFFu) == 0; }

// magnitude * 2^exponent as a float of `ResultBits` significant bits.
template <int ResultBits>
NIBBLE_HD float truncated(std::uint64_t magnitude, int exponent, bool negative) {
  const std::uint32_t sign = negative ? 0x80000000u : 0u;
  if (magnitude == 0) return 0.0f;
  const int top = top_bit(magnitude);
  if (top >= ResultBits) {
    const int drop = top - (ResultBits - 1);
    magnitude = magnitude >> drop << drop;
  }
  const int e = top + exponent;
  if (e > 127) return bit_cast<float>(sign | 0x7F800000u);
  if (e < -126) {
    const auto units = static_cast<std::uint32_t>(shifted(magnitude, exponent + 149));
    return units == 0 ? 0.0f : bit_cast<float>(sign | units);
  }
  const auto sig = static_cast<std::uint32_t>(shifted(magnitude, 23 - top));
  return bit_cast<float>(sign | (sig & 0x7FFFFFu) | static_cast<std::uint32_t>(e + 127) << 23);
}

}  // namespace detail

// The fused sum of a[i] * b[i * BStride], i < Terms, and c. NaN is 0x7FFFFFFF.
template <int Terms, int F, int ResultBits = 24, int MinExponent = kBf16MinExponent, int BStride = 1>
NIBBLE_HD float fused_dot(const float* a, const float* b, float c) {
  static_assert(F >= 1 && F <= 46 && ResultBits >= 1 && ResultBits <= 24 && Terms <= 1 << 12);
  using namespace detail;
  const std::uint32_t c_bits = bit_cast<std::uint32_t>(c);
  bool nan = is_nan(c_bits);
  bool plus = is_inf(c_bits) && c_bits >> 31 == 0, minus = is_inf(c_bits) && c_bits >> 31 != 0;
  constexpr int kNone = -100000;
  int m = is_zero(c_bits) ? kNone : split<-126>(c_bits).e;
  for (int i = 0; i < Terms; ++i) {
    const std::uint32_t x = bit_cast<std::uint32_t>(a[i]), y = bit_cast<std::uint32_t>(b[i * BStride]);
    const bool zero = is_zero(x) || is_zero(y);
    if (is_nan(x) || is_nan(y)) nan = true;
    if (is_inf(x) || is_inf(y)) {
      if (zero) nan = true;
      ((x ^ y) >> 31 == 0 ? plus : minus) = true;
    }
    const int e = split<MinExponent>(x).e + split<MinExponent>(y).e;
    if (!zero && e > m) m = e;
  }
  if (nan || (plus && minus)) return bit_cast<float>(0x7FFFFFFFu);
  if (plus || minus) return bit_cast<float>(plus ? 0x7F800000u : 0xFF800000u);
  if (m == kNone) return 0.0f;
  if (m < kLeastAlignment) m = kLeastAlignment;

  const auto signed_term = [](std::uint64_t magnitude, std::uint32_t sign_bits) {
    const auto v = static_cast<std::int64_t>(magnitude);
    return sign_bits >> 31 == 0 ? v : -v;
  };
  std::int64_t sum = 0;
  if (!is_zero(c_bits)) {
    const SigExp v = split<-126>(c_bits);
    sum = signed_term(shifted(v.sig, F - 23 + v.e - m), c_bits);
  }
  for (int i = 0; i < Terms; ++i) {
    const std::uint32_t x = bit_cast<std::uint32_t>(a[i]), y = bit_cast<std::uint32_t>(b[i * BStride]);
    if (is_zero(x) || is_zero(y)) continue;  // its exponent may lie above m
    const SigExp u = split<MinExponent>(x), v = split<MinExponent>(y);
    sum += signed_term(shifted(u.sig * v.sig, F - 46 + u.e + v.e - m), x ^ y);
  }
  const bool negative = sum < 0;
  return truncated<ResultBits>(static_cast<std::uint64_t>(negative ? -sum : sum), m - F, negative);
}

}  // namespace nibble::num
