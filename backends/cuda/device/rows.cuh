// rows.cuh: reading and writing buffers of either type, counting rows.
#pragma once

#include "backends/cuda/launch.h"
#include "core/numerics/codecs.h"

namespace nibble::cuda {

struct Bf16 {
  std::uint16_t bits;
};

__device__ __forceinline__ float widen(float v) { return v; }
__device__ __forceinline__ float widen(Bf16 v) { return num::bf16_to_float(v.bits); }
__device__ __forceinline__ void put(float* at, float v) { *at = v; }
__device__ __forceinline__ void put(Bf16* at, float v) { at->bits = num::float_to_bf16(v); }
// The value that a buffer of this type would hold.
__device__ __forceinline__ float as_stored(const float*, float v) { return v; }
__device__ __forceinline__ float as_stored(const Bf16*, float v) {
  return num::bf16_to_float(num::float_to_bf16(v));
}

template <class T>
struct TypedRows {
  T* data;
  std::int64_t stride;
  __device__ __forceinline__ T* row(std::int64_t r) const { return data + r * stride; }
};

template <class T>
TypedRows<T> typed(const View& v) {
  return {reinterpret_cast<T*>(v.data), v.stride};
}

static_assert(static_cast<int>(Rows::tokens) == 0 && static_cast<int>(Rows::outputs) == 1 &&
              static_cast<int>(Rows::routed) == 2 && static_cast<int>(Rows::one) == 3);  // StepView::count
__device__ __forceinline__ std::int32_t row_count(const StepView& s, Rows r) {
  return s.count[static_cast<int>(r)];
}

// Calls f(T*) with a null pointer of the element type that `dtype` names.
template <class F>
void with_type(DType dtype, F f) {
  if (dtype == DType::bf16) {
    f(static_cast<Bf16*>(nullptr));
  } else {
    f(static_cast<float*>(nullptr));
  }
}

}  // namespace nibble::cuda
