// codes.cuh: eight neighbouring columns to codes, and the scales of their group; contract: core/ops/ops.h Quantize.
// Same bytes as pack.cuh, by quotients that are checked once for a group instead of divided one by one.
#pragma once

#include <type_traits>

#include "backends/cuda/device/eights.cuh"
#include "backends/cuda/device/pack.cuh"
#include "backends/cuda/ops/pack.h"

namespace nibble::cuda {

struct CodesOf8 {
  TypedRows<std::uint8_t> codes;
  std::byte* scales;
  std::int64_t scale_stride;  // in elements
  float scale, inverse;       // of the static formats
  unsigned limit;             // magnitudes below it may go by quotient() with that scale
};

// Bytes with the sign bits of eight columns, of the even and of the odd ones, at their codes' places.
__device__ __forceinline__ unsigned signs8(const Eight& v) {
  const unsigned even = __byte_perm(__byte_perm(v.w[0], v.w[1], 0x0051), __byte_perm(v.w[2], v.w[3], 0x0051), 0x5410),
                 odd = __byte_perm(__byte_perm(v.w[0], v.w[1], 0x0073), __byte_perm(v.w[2], v.w[3], 0x0073), 0x5410);
  return (even >> 4 & 0x08080808u) | (odd & 0x80808080u);
}

// Codes of v / unit, v without NaN; unit8: unit / 8.
__device__ __forceinline__ unsigned e2m1_codes8(const Eight& v, float unit8) {
  const float y = num::refined(unit8, near_reciprocal(unit8));
  float x[8];
  widen8(v, x);
  unsigned half[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    unsigned four = 0;
#pragma unroll
    for (int i = 3; i >= 0; --i) four = (four << 4) + num::e2m1_low16(num::quotient(x[4 * h + i], unit8, y));
    half[h] = four;
  }
  return __byte_perm(half[0], half[1], 0x5410) | signs8(v);
}

// Bits 0..7: of `low`, 8..15: of `high`, as num::float_to_e4m3.
__device__ __forceinline__ unsigned e4m3_pair(float low, float high) {
#if __CUDA_ARCH__ >= 890
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return num::float_to_e4m3(low) | static_cast<unsigned>(num::float_to_e4m3(high)) << 8;
#endif
}
// A number's code without sign, to its value.
__device__ __forceinline__ float e4m3_number(unsigned code) {
  return num::mul(num::bit_cast<float>(code << 20), 0x1p120f);
}

// `plain`: quotient() may be taken, `inverse` is 1 / scale.
__device__ __forceinline__ uint2 e4m3_codes8(const Eight& v, float scale, float inverse, bool plain) {
  float q[8];
  widen8(v, q);
  if (plain) {
#pragma unroll
    for (int i = 0; i < 8; ++i) q[i] = num::quotient(q[i], scale, inverse);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) q[i] = num::div(q[i], scale);
  }
  return make_uint2(e4m3_pair(q[0], q[1]) | e4m3_pair(q[2], q[3]) << 16,
                    e4m3_pair(q[4], q[5]) | e4m3_pair(q[6], q[7]) << 16);
}

// A scale that was made from its values: fits quotient() as long as it is in range, since no value exceeds 448 of it.
__device__ __forceinline__ uint2 e4m3_codes8(const Eight& v, float scale) {
  return e4m3_codes8(v, scale, num::refined(scale, near_reciprocal(scale)), num::quotient_limit(scale) > 0.0f);
}

// By divisions, for the groups that quotient() does not reach; two lanes of a group call together. Returns the codes.
__device__ __forceinline__ unsigned nvfp4_by_division(const Eight& v, float scale, unsigned& s) {
  const unsigned own = most8_number(v);
  const unsigned amax = max(own, __shfl_xor_sync(3u << (threadIdx.x & 30), own, 1));
  s = num::float_to_e4m3(num::div(num::div(num::bit_cast<float>(amax), 6.0f), scale));
  if (s == 0) return 0;
  const float unit = num::mul(num::e4m3_to_float(static_cast<std::uint8_t>(s)), scale);
  float x[8];
  widen8(v, x);
  unsigned codes = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) codes |= static_cast<unsigned>(num::float_to_e2m1(num::div(x[i], unit))) << 4 * i;
  return codes;
}

// Columns column .. column + 7 of a row, or none (v zeros). Not for fp8_token. Whole warps call together, lane l eight
// columns behind lane l - 1, lane 0 at a multiple of 128. most: most8(v).
template <ActivationFormat::Kind K>
__device__ __forceinline__ void pack8(const CodesOf8& to, std::int64_t row, int column, bool exists, const Eight& v,
                                      unsigned most) {
  using Kind = ActivationFormat::Kind;
  static_assert(K == Kind::nvfp4_static || K == Kind::fp8_tensor_static || K == Kind::fp8_token_group128);
  if constexpr (K == Kind::nvfp4_static) {
    const unsigned amax = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
    if (!exists) return;  // both lanes of a group: columns come in multiples of 16
    unsigned s, codes;
    if (amax < to.limit) {
      const float six = num::quotient(num::bit_cast<float>(amax), 6.0f, 1.0f / 6.0f);
      s = e4m3_pair(num::quotient(six, to.scale, to.inverse), 0.0f);
      codes = e2m1_codes8(v, num::mul(num::mul(e4m3_number(s), to.scale), 0.125f));
      if (s == 0) codes = 0;
    } else {
      codes = nvfp4_by_division(v, to.scale, s);
    }
    *reinterpret_cast<unsigned*>(to.codes.row(row) + column / 2) = codes;
    if (column % 16 == 0) {
      reinterpret_cast<std::uint8_t*>(to.scales)[row * to.scale_stride + column / 16] = static_cast<std::uint8_t>(s);
    }
  } else if constexpr (K == Kind::fp8_tensor_static) {
    if (!exists) return;
    *reinterpret_cast<uint2*>(to.codes.row(row) + column) = e4m3_codes8(v, to.scale, to.inverse, most < to.limit);
  } else {
    if (most > kInfinity) most = most8_number(v);
    for (int s = 8; s > 0; s /= 2) most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, s));
    if (!exists) return;
    const float scale = fp8_scale(most);
    *reinterpret_cast<uint2*>(to.codes.row(row) + column) = e4m3_codes8(v, scale);
    if (column % 128 == 0) {
      reinterpret_cast<float*>(to.scales)[row * to.scale_stride + column / 128] = scale;
    }
  }
}

// Host side.
inline bool codes_in_eights(const PackArgs& a, std::int32_t cols) {
  const bool fp4 = a.format.kind == ActivationFormat::Kind::nvfp4_static;
  const std::uintptr_t bytes = fp4 ? 4 : 8;
  return cols % (fp4 ? 16 : 8) == 0 && reinterpret_cast<std::uintptr_t>(a.codes.data) % bytes == 0 &&
         static_cast<std::uintptr_t>(a.codes.stride) % bytes == 0;
}
inline CodesOf8 codes_of_8(const PackArgs* a) {
  if (a == nullptr) return {};
  const float scale = a->format.scale;
  return {typed<std::uint8_t>(a->codes), a->scales.data, a->scales.stride, scale, 1.0f / scale,
          num::bit_cast<unsigned>(num::quotient_limit(scale))};
}

}  // namespace nibble::cuda
