// convolve.cuh: what kernels of the delta net's convolution share: silu without branches, and where a channel's head is.
#pragma once

#include "backends/cuda/device/eights.cuh"

namespace nibble::cuda {

constexpr int kConvTaps = 4;  // of the kernels that keep a channel's in registers

// num::silu by a quotient without branches (quotient.h), where that is exact.
__device__ __forceinline__ bool silu_exact(float x) {
  const float size = num::abs(x);
  return x >= num::kSiluLeast && (size >= 0x1p-100f || size == 0.0f) && size <= 0x1p100f;
}
__device__ __forceinline__ float silu_made(float x) {
  const float d = num::silu_denominator(x);
  return num::silu_by(x, d, near_reciprocal(d));
}
__device__ __forceinline__ float silu_of(float x) {
  const float made = silu_made(x);
  return silu_exact(x) ? made : num::silu(x);
}
// Of several, with one copy of the code for those that are not exact.
template <int N>
__device__ __forceinline__ void silu_all(float (&x)[N]) {
  float made[N];
  bool exact = true;
#pragma unroll
  for (int i = 0; i < N; ++i) made[i] = silu_made(x[i]), exact = exact && silu_exact(x[i]);
  if (!exact) {
#pragma unroll 1
    for (int i = 0; i < N; ++i) {
      float from = 0.0f;
#pragma unroll
      for (int j = 0; j < N; ++j) from = i == j ? x[j] : from;
      const float to = num::silu(from);
#pragma unroll
      for (int j = 0; j < N; ++j) made[j] = i == j ? to : made[j];
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = made[i];
}

// Sum over the taps, oldest first.
__device__ __forceinline__ float convolved(const float4& tap, float x3, float x2, float x1, float x0) {
  return num::fma(tap.w, x0, num::fma(tap.z, x1, num::fma(tap.y, x2, num::fma(tap.x, x3, 0.0f))));
}

}  // namespace nibble::cuda
