// fused_vector.h: the chains of fused_group.h in AVX2 and AVX-512.
//
// Exponents are 16 bits in units of 1/128, so that they are the upper half of the float 2^m: finding m
// costs an addition and a maximum for each k of sixteen outputs, and no conversion. An exponent of a row
// is held with a bias of 64, one of a panel with 63, which leaves room below for zeros.
#pragma once

#include "backends/cpu/kernels/fused_operand.h"
#include "backends/cpu/kernels/simd_int.h"

namespace nibble::cpu::NIBBLE_ISA {

constexpr std::int32_t kUnit = 128, kRowBias = 64, kPanelBias = 63, kBias = kRowBias + kPanelBias;
constexpr std::int32_t kZeroExponent = -32768;
static_assert(kBias == 127);
// Biased: a product of two values that are not zero is above the first; one with a zero is not, unless
// its other exponent is above 66, and then is taken for a low one.
constexpr std::int32_t kNoTerm = -126 * kUnit, kMostExponent = (kBias + 100) * kUnit;

template <int MinExponent>
NIBBLE_INLINE std::int32_t row_exponent(float v) {
  const std::uint32_t u = num::bit_cast<std::uint32_t>(v) & 0x7FFFFFFFu;
  const auto field = static_cast<std::int32_t>(u >> 23);
  const std::int32_t e = field < MinExponent + 127 ? MinExponent + 127 : field;
  return twice(u == 0 ? kZeroExponent : (e - 127 + kRowBias) * kUnit);
}

// All that is looked at lies in a float's upper half, for f16 and bf16 alike. Returns whether all values
// are ordinary.
template <int MinExponent>
NIBBLE_INLINE bool panel_exponents(const float* values, std::int64_t k, std::int16_t* exponents) {
  constexpr std::int16_t kLeast = (MinExponent + 127) * kUnit;
  for (std::int64_t i = 0; i < k * kPanelRows; i += kPanelRows) {
    store16(exponents + i, upper_halves_of(load(values + i)));
  }
  std::int16_t most = 0;
  for (std::int64_t i = 0; i < k * kPanelRows; ++i) {
    const auto h = static_cast<std::int16_t>(exponents[i] & 0x7FFF);
    most = h > most ? h : most;
    auto e = static_cast<std::int16_t>(h & 0x7F80);
    e = e < kLeast ? std::int16_t{kLeast} : e;
    e = static_cast<std::int16_t>(e + (kPanelBias - 127) * kUnit);
    exponents[i] = h == 0 ? std::int16_t{kZeroExponent} : e;
  }
  return most < kNotOrdinary<MinExponent>;
}

constexpr std::uint32_t float_bits(int exponent) {
  return static_cast<std::uint32_t>(exponent + 127) << 23;
}

// False, and c as it was, where something is not ordinary. Rows take turns, so that one's long way from S
// back to c hides behind the others' products.
//
// c is a multiple of 2^-126 below 2^100 at first, so it is always 0 or a normal number, and stays below
// 2^110; f16 and e4m3 operands cannot bring m out of range.
template <int G, int F, int MinExponent, int Bits, int Rows>
NIBBLE_INLINE bool ordinary_chain(const float* a, const std::int32_t* ea, std::int64_t stride,
                                  const float* b, const std::int16_t* eb, std::int64_t k, float* c) {
  constexpr bool kInRange = MinExponent != num::kBf16MinExponent;
  static_assert(!kInRange || (2 * MinExponent > F - 126 && F < 27));
  static_assert(Bits == 24 || kSumFits<G, F>);
  constexpr std::uint32_t kLeastStart = float_bits(-100), kStarts = float_bits(100) - kLeastStart;
  F32x16 sum[Rows];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    sum[r] = load(c + r * kPanelRows);
    const I32x16 size = and32(bits_of(sum[r]), set32(0x7FFFFFFFu)), least = set32(kLeastStart);
    if (any_above32(sub32(where_zero32(size, least, size), least), kStarts - 1)) return false;
  }
  I16x16 low = set16(-1), high = set16(-32768);
  I32x16 large = set32(0);
  for (std::int64_t k0 = 0; k0 < k; k0 += G) {
    const float* w = b + k0 * kPanelRows;
    const std::int16_t* ew = eb + k0 * kPanelRows;
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const float* x = a + r * stride + k0;
      const std::int32_t* ex = ea + r * stride + k0;
      I16x16 top = add_saturated16(pairs16(ex[0]), load16(ew));
#pragma GCC unroll 16
      for (int i = 1; i < G; ++i) {
        top = max16(top, add_saturated16(pairs16(ex[i]), load16(ew + i * kPanelRows)));
      }
      I32x16 m = max32(upper_halves(top), and32(bits_of(sum[r]), set32(0x7F800000u)));
      if constexpr (!kInRange) {
        high = max16(high, top);
        low = min_unsigned16(low, add16(top, set16(-kNoTerm - 1)));  // those without a term wrap around
        m = max32(m, set32(float_bits(F - 126)));
      }
      const F32x16 scale = float_of(sub32(set32(static_cast<std::uint32_t>(F + 2 * 127) << 23), m));
      const I32x16 start = truncated(mul(sum[r], scale));
      I32x16 s = kSumFits<G, F> ? start : set32(0);
#pragma GCC unroll 16
      for (int i = 0; i < G; ++i) {
        s = add32(s, truncated(mul(mul(set1(x[i]), load(w + i * kPanelRows)), scale)));
      }
      if constexpr (!kSumFits<G, F>) {
        large = max_unsigned32(large, abs32(s));
        s = add32(s, start);
      }
      F32x16 whole = to_float(s);
      if constexpr (Bits < 24) whole = float_of(and32(bits_of(whole), set32(kKeptBits<Bits>)));
      sum[r] = mul(whole, float_of(sub32(m, set32(static_cast<std::uint32_t>(F) << 23))));
    }
  }
  if constexpr (!kInRange) {
    if (any_above16(high, kMostExponent) || any_below_unsigned16(low, (F + 1) * kUnit - kNoTerm - 1)) {
      return false;
    }
  }
  if constexpr (!kSumFits<G, F>) {
    if (any_above32(large, static_cast<std::uint32_t>(kMostSum<G, F>))) return false;
  }
  // Where c was 0 and no product was not, m was 0 and the powers of two were any: perhaps -0.
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) store(c + r * kPanelRows, add(sum[r], zero()));
  return true;
}

}  // namespace nibble::cpu::NIBBLE_ISA
