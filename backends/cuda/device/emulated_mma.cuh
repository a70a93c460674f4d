// emulated_mma.cuh: mma.m16n8k16 of bf16 in integer arithmetic, for devices whose own instruction adds
// up differently or does not exist, and for tests. Same fragments, same bits.
#pragma once

#include <cstdint>

#include "core/numerics/matrix_order.h"

namespace nibble::cuda {

namespace detail {

// value = sig * 2^(exponent - Fraction), subnormals not normalised.
struct Parts {
  std::uint32_t sig;
  int exponent;
  bool negative, nan, infinite;
};

template <int Fraction>  // 7: bf16, 23: f32
NIBBLE_HD Parts parts_of(std::uint32_t bits) {
  constexpr std::uint32_t kHidden = 1u << Fraction;
  const std::uint32_t mantissa = bits & (kHidden - 1u), field = bits >> Fraction & 255u;
  Parts p;
  p.negative = (bits >> (Fraction + 8) & 1u) != 0;
  p.nan = field == 255u && mantissa != 0;
  p.infinite = field == 255u && mantissa == 0;
  p.sig = field == 0 ? mantissa : mantissa | kHidden;
  p.exponent = field == 0 ? -126 : static_cast<int>(field) - 127;
  return p;
}

// sum * 2^scale, truncated to float32; beyond the largest float infinity.
NIBBLE_HD float truncate_to_float(std::int64_t sum, int scale) {
  if (sum == 0) return 0.0f;
  const std::uint32_t sign = sum < 0 ? 0x80000000u : 0u;
  const std::uint64_t mag = static_cast<std::uint64_t>(sum < 0 ? -sum : sum);
  int top = 0;
  for (int step = 32; step > 0; step /= 2) {
    if (mag >> (top + step) != 0) top += step;
  }
  const int exponent = top + scale;
  if (exponent > 127) return num::bit_cast<float>(sign | 0x7F800000u);
  if (exponent < -126) {  // in units of 2^-149
    const int shift = scale + 149;
    const std::uint64_t units = shift >= 0 ? mag << shift : shift > -64 ? mag >> -shift : 0;
    return num::bit_cast<float>(sign | static_cast<std::uint32_t>(units));
  }
  const std::uint64_t sig = top > 23 ? mag >> (top - 23) : mag << (23 - top);
  return num::bit_cast<float>(sign | static_cast<std::uint32_t>(exponent + 127) << 23 |
                              (static_cast<std::uint32_t>(sig) & 0x7FFFFFu));
}

}  // namespace detail

// One fused sum of 16 products and c, by matrix_order.h with F = 25. a, b: pairs of bf16; pairs of
// the same index belong together, their order does not matter.
NIBBLE_HD float fused_dot16_bf16(const std::uint32_t* a, const std::uint32_t* b, float c) {
  constexpr int kFraction = num::kSm90Order.fraction_bits;
  static_assert(num::kSm90Order.group == 16);
  constexpr int kNone = -100000;  // zeros take no part in the alignment
  const detail::Parts pc = detail::parts_of<23>(num::bit_cast<std::uint32_t>(c));
  std::uint32_t product[16];
  int exponent[16];
  bool nan = pc.nan;
  bool plus = pc.infinite && !pc.negative, minus = pc.infinite && pc.negative;
  int top = pc.sig == 0 ? kNone : pc.exponent;
  std::uint32_t negative = 0;
  for (int i = 0; i < 16; ++i) {
    const detail::Parts x = detail::parts_of<7>(a[i / 2] >> (i % 2 * 16) & 0xFFFFu);
    const detail::Parts y = detail::parts_of<7>(b[i / 2] >> (i % 2 * 16) & 0xFFFFu);
    const bool sign = x.negative != y.negative;
    nan = nan || x.nan || y.nan || (x.infinite && y.sig == 0) || (y.infinite && x.sig == 0);
    if (x.infinite || y.infinite) {
      plus = plus || !sign;
      minus = minus || sign;
    }
    negative |= static_cast<std::uint32_t>(sign) << i;
    product[i] = x.sig * y.sig;
    exponent[i] = x.exponent + y.exponent;
    if (product[i] != 0 && exponent[i] > top) top = exponent[i];
  }
  if (nan || (plus && minus)) return num::bit_cast<float>(0x7FFFFFFFu);
  if (plus || minus) return num::bit_cast<float>(plus ? 0x7F800000u : 0xFF800000u);
  if (top == kNone) return 0.0f;
  std::int64_t sum = 0;
  for (int i = 0; i < 16; ++i) {
    if (product[i] == 0) continue;
    const int down = top - exponent[i];
    const std::uint64_t wide = static_cast<std::uint64_t>(product[i]) << (kFraction - 14);
    const std::int64_t term = down < 64 ? static_cast<std::int64_t>(wide >> down) : 0;
    sum += (negative >> i & 1u) != 0 ? -term : term;
  }
  if (pc.sig != 0) {
    const int down = top - pc.exponent;
    const std::uint64_t wide = static_cast<std::uint64_t>(pc.sig) << (kFraction - 23);
    const std::int64_t term = down < 64 ? static_cast<std::int64_t>(wide >> down) : 0;
    sum += pc.negative ? -term : term;
  }
  return detail::truncate_to_float(sum, top - kFraction);
}

#if defined(__CUDACC__)

// Lane 4 g + p holds of A rows g and g + 8, of B column g, of C columns 2 p and 2 p + 1; it gathers the
// two whole rows and columns that its four results need. Out of line: it would take a caller's registers.
static __device__ __noinline__ float4 emulated_m16n8k16(uint4 a, uint2 b, float4 c) {
  const int lane = static_cast<int>(threadIdx.x & 31u), g = lane >> 2, p = lane & 3;
  std::uint32_t upper[8], lower[8], left[8], right[8];
  for (int q = 0; q < 4; ++q) {
    upper[q] = __shfl_sync(~0u, a.x, 4 * g + q);
    lower[q] = __shfl_sync(~0u, a.y, 4 * g + q);
    upper[4 + q] = __shfl_sync(~0u, a.z, 4 * g + q);
    lower[4 + q] = __shfl_sync(~0u, a.w, 4 * g + q);
    left[q] = __shfl_sync(~0u, b.x, 8 * p + q);
    left[4 + q] = __shfl_sync(~0u, b.y, 8 * p + q);
    right[q] = __shfl_sync(~0u, b.x, 8 * p + 4 + q);
    right[4 + q] = __shfl_sync(~0u, b.y, 8 * p + 4 + q);
  }
  return make_float4(fused_dot16_bf16(upper, left, c.x), fused_dot16_bf16(upper, right, c.y),
                     fused_dot16_bf16(lower, left, c.z), fused_dot16_bf16(lower, right, c.w));
}

#endif

}  // namespace nibble::cuda
