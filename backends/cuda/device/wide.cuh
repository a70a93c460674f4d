// wide.cuh: four neighbouring elements at a time, where addresses allow it.
#pragma once

#include "backends/cuda/device/rows.cuh"

namespace nibble::cuda {

__device__ __forceinline__ void load4(const float* at, float* v) {
  const float4 w = *reinterpret_cast<const float4*>(at);
  v[0] = w.x, v[1] = w.y, v[2] = w.z, v[3] = w.w;
}
__device__ __forceinline__ void load4(const Bf16* at, float* v) {
  const uint2 w = *reinterpret_cast<const uint2*>(at);
  v[0] = num::bit_cast<float>(w.x << 16), v[1] = num::bit_cast<float>(w.x & 0xFFFF0000u);
  v[2] = num::bit_cast<float>(w.y << 16), v[3] = num::bit_cast<float>(w.y & 0xFFFF0000u);
}
__device__ __forceinline__ void store4(float* at, const float* v) {
  float4 w;
  w.x = v[0], w.y = v[1], w.z = v[2], w.w = v[3];
  *reinterpret_cast<float4*>(at) = w;
}
__device__ __forceinline__ void store4(Bf16* at, const float* v) {
  uint2 w;
  w.x = num::float_to_bf16(v[0]) | static_cast<unsigned>(num::float_to_bf16(v[1])) << 16;
  w.y = num::float_to_bf16(v[2]) | static_cast<unsigned>(num::float_to_bf16(v[3])) << 16;
  *reinterpret_cast<uint2*>(at) = w;
}

// `count` of the four exist; `wide`: the address may be read as one word.
template <class T>
__device__ __forceinline__ void load_up_to_4(const T* at, int count, bool wide, float* v) {
  if (wide && count == 4) return load4(at, v);
  for (int i = 0; i < 4; ++i) v[i] = i < count ? widen(at[i]) : 0.0f;
}
template <class T>
__device__ __forceinline__ void store_up_to_4(T* at, int count, bool wide, const float* v) {
  if (wide && count == 4) return store4(at, v);
  for (int i = 0; i < 4; ++i) {
    if (i < count) put(at + i, v[i]);
  }
}

// Host side: columns 4i .. 4i + 3 of every row start at a multiple of their common size.
inline bool is_wide(const View& v) {
  const std::uintptr_t size = v.dtype == DType::u8 ? 1 : v.dtype == DType::bf16 ? 2 : 4;
  return reinterpret_cast<std::uintptr_t>(v.data) % (4 * size) == 0 && v.stride % 4 == 0;
}

// Rows are cut in pieces of this many columns, one block of 256 threads each.
constexpr int kPieceThreads = 256, kPieceColumns = 4 * kPieceThreads;

inline std::int64_t pieces_of(std::int64_t cols) {
  return (cols + kPieceColumns - 1) / kPieceColumns;
}

}  // namespace nibble::cuda
