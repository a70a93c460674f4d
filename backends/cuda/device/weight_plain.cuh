// weight_plain.cuh: a warp's unit of weights in shared memory to bf16 fragments, in the order of
// weight_decode.cuh. For images of sm90 without NaN among FP8 codes (WeightImage::plain).
#pragma once

#include <cstdint>

#include "backends/cuda/device/weight_decode.cuh"

namespace nibble::cuda {

#if defined(__CUDACC__)

constexpr std::uint32_t kTwo120 = 0x7B807B80u;  // pairs of bf16

__device__ __forceinline__ uint4 shared_4(std::uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}
__device__ __forceinline__ std::uint32_t shared_1(std::uint32_t at) {
  std::uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}
__device__ __forceinline__ uint2 shared_2(std::uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}

// Bytes 2 I and 2 I + 1: e4m3 that is no NaN.
template <int I>
__device__ __forceinline__ std::uint32_t plain_e4m3_pair(std::uint32_t bytes) {
  const std::uint32_t codes = __byte_perm(bytes, 0, I == 0 ? 0x1404u : 0x3424u);
  return mul_bf16_pair((codes & 0x80008000u) | (codes >> 4 & 0x07F007F0u), kTwo120);
}

// Addresses: of this lane's first 16 bytes of codes and its 8 bytes of scales.
template <WeightFormat F>
struct SharedUnit;

template <>
struct SharedUnit<WeightFormat::nvfp4> {
  uint4 codes;
  uint2 scales;
  __device__ __forceinline__ SharedUnit(std::uint32_t unit, std::uint32_t scale)
      : codes(shared_4(unit)), scales(shared_2(scale)) {}
  __device__ __forceinline__ void fragment(int s, std::uint32_t (&a)[4]) const {
    const std::uint32_t first = s < 2 ? codes.x : codes.z, second = s < 2 ? codes.y : codes.w;
    const std::uint32_t two = s < 2 ? scales.x : scales.y;
    if (s % 2 == 0) {
      arranged_fragment<0>(first, second, two, a);
    } else {
      arranged_fragment<1>(first, second, two, a);
    }
  }
};

template <>
struct SharedUnit<WeightFormat::fp8_e4m3> {
  uint4 steps[2];
  __device__ __forceinline__ SharedUnit(std::uint32_t unit, std::uint32_t)
      : steps{shared_4(unit), shared_4(unit + 512)} {}
  __device__ __forceinline__ void fragment(int s, std::uint32_t (&a)[4]) const {
    const uint4& v = steps[s / 2];
    const std::uint32_t low = s % 2 == 0 ? v.x : v.z, high = s % 2 == 0 ? v.y : v.w;
    a[0] = plain_e4m3_pair<0>(low);
    a[1] = plain_e4m3_pair<1>(low);
    a[2] = plain_e4m3_pair<0>(high);
    a[3] = plain_e4m3_pair<1>(high);
  }
};

template <>
struct SharedUnit<WeightFormat::bf16> {
  std::uint32_t at;
  __device__ __forceinline__ SharedUnit(std::uint32_t unit, std::uint32_t) : at(unit) {}
  __device__ __forceinline__ void fragment(int s, std::uint32_t (&a)[4]) const {
    const uint4 v = shared_4(at + static_cast<std::uint32_t>(s) * 512);
    a[0] = v.x;
    a[1] = v.y;
    a[2] = v.z;
    a[3] = v.w;
  }
};

#endif

}  // namespace nibble::cuda
