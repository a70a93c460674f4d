// fused_group.h: fused sums (core/numerics/fused_dot.h) for sixteen outputs at once.
//
// Why float and int32 arithmetic is exact here, given finite operands of at most 11 significant bits:
//   m          by add and max of 16-bit exponents; a zero has so low a one that it never sets m
//   a * b      at most 22 bits; where its exponent lies below float's range, its term is 0 either way
//              (m >= F - 126, so what a rounded product can change is below 1)
//   * 2^(F-m)  a power of two; if the product underflows, it is below 1 and truncates to 0 either way
//   S          |term| < 2^(F + 2) fits, and so do 16 of them at F = 25 (16 * (2 - 2^-7)^2 * 2^25 < 2^31);
//              c (< 2^(F + 1)) may not: that is looked at
//   result     S truncated to 24 bits, times 2^(m - F) >= 2^-126: a multiple of the least normal number,
//              never a subnormal; of 14 bits (e4m3, F = 13): |S| < 2^21 is a float, its low ten bits are cleared
// A chain is computed as if all of that held, and what it could not know beforehand (m out of range, a
// large S) is looked at beside it. Where it did not hold, the chain is done again group by group, and
// what is still not ordinary is left to the scalar model, which is always right.
#pragma once

#include "core/numerics/fused_dot.h"

#if defined(NIBBLE_ISA_avx2) || defined(NIBBLE_ISA_avx512)
#include "backends/cpu/kernels/fused_vector.h"
#else
#include "backends/cpu/kernels/fused_plain.h"
#endif

namespace nibble::cpu::NIBBLE_ISA {

template <int G, int F, int MinExponent, int Bits>
__attribute__((noinline)) static void exact_group(const float* a, const float* b, float* c) {
  for (int j = 0; j < kPanelRows; ++j) {
    c[j] = num::fused_dot<G, F, Bits, MinExponent, kPanelRows>(a, b + j, c[j]);
  }
}

template <int G, int F, int MinExponent, int Bits>
__attribute__((noinline)) static void group_by_group(const float* a, const std::int32_t* ea,
                                                     const float* b, const std::int16_t* eb,
                                                     std::int64_t k, float* c) {
  for (std::int64_t k0 = 0; k0 < k; k0 += G) {
    const float* w = b + k0 * kPanelRows;
    bool ordinary = true;
    for (int i = 0; i < G; ++i) ordinary &= is_ordinary<MinExponent>(a[k0 + i]);
    for (int i = 0; i < G * kPanelRows; ++i) ordinary &= is_ordinary<MinExponent>(w[i]);
    if (ordinary && ordinary_chain<G, F, MinExponent, Bits, 1>(a + k0, ea + k0, 0, w,
                                                               eb + k0 * kPanelRows, G, c)) {
      continue;
    }
    exact_group<G, F, MinExponent, Bits>(a + k0, w, c);
  }
}

// c[r, 16] over k steps of Rows rows, k a multiple of G, inside TowardZero; `ordinary`: all operands are.
//   a, ea [Rows, stride], row_exponent()'s   b, eb [k, 16], panel_exponents()'s
template <int G, int F, int MinExponent, int Bits, int Rows>
NIBBLE_INLINE void fused_chain(const float* a, const std::int32_t* ea, std::int64_t stride,
                               const float* b, const std::int16_t* eb, std::int64_t k, bool ordinary,
                               float* c) {
  if (ordinary && ordinary_chain<G, F, MinExponent, Bits, Rows>(a, ea, stride, b, eb, k, c)) return;
  for (int r = 0; r < Rows; ++r) {
    group_by_group<G, F, MinExponent, Bits>(a + r * stride, ea + r * stride, b, eb, k, c + r * kPanelRows);
  }
}

}  // namespace nibble::cpu::NIBBLE_ISA
