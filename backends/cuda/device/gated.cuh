// gated.cuh: what attention makes times the sigmoid of its gate, GatedAttention of core/ops/ops.h. Every kernel that
// writes an attention's output does it here.
#pragma once

#include "backends/cuda/device/eights.cuh"

namespace nibble::cuda {

// Of an op without a gate data is null.
template <class T>
struct HeadGates {
  const T* data;
  std::int64_t stride, head_stride;  // in elements
  __device__ __forceinline__ const T* of(std::int64_t row, int head) const { return data + row * stride + head * head_stride; }
};

// y as attention alone would have stored it, gated; to be rounded once more.
template <class T>
__device__ __forceinline__ float gated_by(float y, const T& gate) {
  return num::mul(as_stored(&gate, y), num::sigmoid(widen(gate)));
}
// Two neighbouring columns, in words of bf16, the lower column in the low half.
__device__ __forceinline__ unsigned gated_pair(float low, float high, unsigned gates) {
  const unsigned y = bf16_pair(low, high);
  return bf16_pair(num::mul(low_of(y), num::sigmoid(low_of(gates))), num::mul(high_of(y), num::sigmoid(high_of(gates))));
}

}  // namespace nibble::cuda
