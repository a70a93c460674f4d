// cuda_runtime_api.h, in place of CUDA's: what kernels of backends/cuda need of the language, for a compiler of C++. The
// threads of a block take turns on one of the processor's (block.h); warps meet at each exchange between lanes.
#pragma once

#define __CUDACC__ 1
#define __device__
#define __host__
#define __global__
#define __shared__ static  // one block at a time
#define NIBBLE_DYNAMIC_SHARED(name) static uint4 name[(96 << 10) / sizeof(uint4)]
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tests/kernels_on_cpu/block.h"

using cudaStream_t = void*;
using std::max;
using std::min;

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

template <class To, class From>
To same_bytes(From v) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &v, sizeof to);
  return to;
}
inline float __uint_as_float(unsigned v) { return same_bytes<float>(v); }
inline unsigned __float_as_uint(float v) { return same_bytes<unsigned>(v); }
inline float __int_as_float(int v) { return same_bytes<float>(v); }
inline int __float_as_int(float v) { return same_bytes<int>(v); }
template <class T>
T __ldg(const T* at) {
  return *at;
}

using nibble::test::blockIdx;
using nibble::test::threadIdx;
inline void __syncthreads() { nibble::test::block_meets(); }
inline void __syncwarp() { nibble::test::warp_exchanges(0, 0); }
template <class T>
T __shfl_sync(unsigned, T v, int from) {
  return same_bytes<T>(nibble::test::warp_exchanges(same_bytes<std::uint32_t>(v), from % 32));
}
template <class T>
T __shfl_xor_sync(unsigned all, T v, int bits) {
  return __shfl_sync(all, v, (static_cast<int>(threadIdx.x) % 32) ^ bits);
}
