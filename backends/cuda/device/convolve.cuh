// convolve.cuh: what kernels of the delta net's convolution share: silu without branches, and where a channel's head is.
#pragma once

#include "backends/cuda/device/eights.cuh"

namespace nibble::cuda {

constexpr int kConvTaps = 4;  // of the kernels that keep a channel's in registers

// num::silu of any number: by a quotient without branches (quotient.h) where that is exact.
__device__ __forceinline__ float silu_of(float x) {
  const float d = num::silu_denominator(x), size = num::abs(x);
  const float made = num::silu_by(x, d, near_reciprocal(d));
  const bool exact = x >= num::kSiluLeast && (size >= 0x1p-100f || size == 0.0f) && size <= 0x1p100f;
  return exact ? made : num::silu(x);
}

// Sum over the taps, oldest first.
__device__ __forceinline__ float convolved(const float4& tap, float x3, float x2, float x1, float x0) {
  return num::fma(tap.w, x0, num::fma(tap.z, x1, num::fma(tap.y, x2, num::fma(tap.x, x3, 0.0f))));
}

}  // namespace nibble::cuda
