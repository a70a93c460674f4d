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
__device__ __forceinline__ unsigned e2m1_codes8(const Eight& v, float unit8, float inverse) {
  float x[8];
  widen8(v, x);
  unsigned half[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    unsigned four = 0;
#pragma unroll
    for (int i = 3; i >= 0; --i) four = (four << 4) + num::e2m1_low16(num::quotient(x[4 * h + i], unit8, inverse));
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
struct MadeScale {
  float scale, inverse;
  bool plain;
  __device__ __forceinline__ explicit MadeScale(unsigned most)
      : scale(fp8_scale(most)),
        inverse(num::refined(scale, near_reciprocal(scale))),
        plain(num::quotient_limit(scale) > 0.0f) {}
};

template <int N>
__device__ __forceinline__ void put_e4m3(std::uint8_t* at, const Eights<N>& v, float scale, float inverse, bool plain) {
  const uint2 first = e4m3_codes8(v.of[0], scale, inverse, plain);
  if constexpr (N == 1) {
    *reinterpret_cast<uint2*>(at) = first;
  } else {
    const uint2 second = e4m3_codes8(v.of[1], scale, inverse, plain);
    *reinterpret_cast<uint4*>(at) = make_uint4(first.x, first.y, second.x, second.y);
  }
}

// By divisions, for the groups that quotient() does not reach; all lanes of a group call together.
template <int N>
__device__ __forceinline__ void nvfp4_by_division(const Eights<N>& v, float scale, unsigned& s, unsigned* codes) {
  unsigned amax = max(most8_number(v.of[0]), most8_number(v.of[N - 1]));
  if constexpr (N == 1) amax = max(amax, __shfl_xor_sync(3u << (threadIdx.x & 30), amax, 1));
  s = num::float_to_e4m3(num::div(num::div(num::bit_cast<float>(amax), 6.0f), scale));
  const float unit = num::mul(num::e4m3_to_float(static_cast<std::uint8_t>(s)), scale);
#pragma unroll
  for (int n = 0; n < N; ++n) {
    codes[n] = 0;
    if (s == 0) continue;
    float x[8];
    widen8(v.of[n], x);
#pragma unroll
    for (int i = 0; i < 8; ++i) codes[n] |= static_cast<unsigned>(num::float_to_e2m1(num::div(x[i], unit))) << 4 * i;
  }
}

template <int N>
__device__ __forceinline__ void pack_nvfp4(const CodesOf8& to, std::int64_t row, int column, bool exists,
                                           const Eights<N>& v) {
  unsigned amax = v.most;
  if constexpr (N == 1) amax = max(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, 1));
  if (!exists) return;  // all lanes of a group: columns come in multiples of 16
  unsigned s, codes[N];
  const float sixth = num::quotient(num::bit_cast<float>(amax), 6.0f, 1.0f / 6.0f);
  s = e4m3_pair(num::quotient(sixth, to.scale, to.inverse), 0.0f);
  if (amax < to.limit && s != 0) {
    const float unit8 = num::mul(num::mul(e4m3_number(s), to.scale), 0.125f),
                inverse = num::refined(unit8, near_reciprocal(unit8));
#pragma unroll
    for (int n = 0; n < N; ++n) codes[n] = e2m1_codes8(v.of[n], unit8, inverse);
  } else {
    nvfp4_by_division(v, to.scale, s, codes);
  }
  std::uint8_t* const at = to.codes.row(row) + column / 2;
  if constexpr (N == 1) {
    *reinterpret_cast<unsigned*>(at) = codes[0];
  } else {
    *reinterpret_cast<uint2*>(at) = make_uint2(codes[0], codes[1]);
  }
  if (N == 2 || column % 16 == 0) {
    reinterpret_cast<std::uint8_t*>(to.scales)[row * to.scale_stride + column / 16] = static_cast<std::uint8_t>(s);
  }
}

// Columns column .. column + 8 N - 1 of a row, or none (v zeros). Not for fp8_token. Whole warps call together, lane l
// 8 N columns behind lane l - 1, lane 0 at a multiple of 128.
template <ActivationFormat::Kind K, int N>
__device__ __forceinline__ void pack_eights(const CodesOf8& to, std::int64_t row, int column, bool exists,
                                            const Eights<N>& v) {
  using Kind = ActivationFormat::Kind;
  static_assert(K == Kind::nvfp4_static || K == Kind::fp8_tensor_static || K == Kind::fp8_token_group128);
  if constexpr (K == Kind::nvfp4_static) {
    pack_nvfp4(to, row, column, exists, v);
  } else if constexpr (K == Kind::fp8_tensor_static) {
    if (exists) put_e4m3(to.codes.row(row) + column, v, to.scale, to.inverse, v.most < to.limit);
  } else {
    unsigned most = v.most_number();
    for (int lane = 8 / N; lane > 0; lane /= 2) most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, lane));
    if (!exists) return;
    const MadeScale made(most);
    put_e4m3(to.codes.row(row) + column, v, made.scale, made.inverse, made.plain);
    if (column % 128 == 0) {
      reinterpret_cast<float*>(to.scales)[row * to.scale_stride + column / 128] = made.scale;
    }
  }
}

// Host side: codes can be written N eights at a time.
inline bool codes_in_eights(const PackArgs& a, std::int32_t cols, int n) {
  const bool fp4 = a.format.kind == ActivationFormat::Kind::nvfp4_static;
  const auto bytes = static_cast<std::uintptr_t>(fp4 ? 4 * n : 8 * n);
  return cols % (fp4 ? 16 : 8 * n) == 0 && reinterpret_cast<std::uintptr_t>(a.codes.data) % bytes == 0 &&
         static_cast<std::uintptr_t>(a.codes.stride) % bytes == 0;
}
inline CodesOf8 codes_of_8(const PackArgs* a) {
  if (a == nullptr) return {};
  const float scale = a->format.scale;
  return {typed<std::uint8_t>(a->codes), a->scales.data, a->scales.stride, scale, 1.0f / scale,
          num::bit_cast<unsigned>(num::quotient_limit(scale))};
}

}  // namespace nibble::cuda
