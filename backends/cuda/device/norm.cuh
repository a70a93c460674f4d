// norm.cuh: groups of columns that a norm sees, and what it makes of each column.
#pragma once

#include <type_traits>

#include "backends/cuda/device/rows.cuh"

namespace nibble::cuda {

struct Ungated {};  // in place of z's element type

template <class X, class Z, class Y>
struct Groups {
  TypedRows<const X> x;
  TypedRows<const Z> z;
  TypedRows<Y> y;
  const float* weight;
  const StepView* step;
  Rows rows;
  std::int32_t heads, group;
  float inverse, eps;  // inverse: 1 / group
};

template <class X, class Z, class Y>
__device__ __forceinline__ float factor(const Groups<X, Z, Y>& g, float sum) {
  return num::rsqrt(num::add(num::mul(sum, g.inverse), g.eps));
}

template <class Z>
__device__ __forceinline__ float gated(float normed, const Z* z) {
  if constexpr (std::is_same_v<Z, Ungated>) {
    return normed;
  } else {
    return num::mul(normed, num::silu(widen(*z)));
  }
}

// Host side.
inline float inverse_of(std::int32_t group) {
  return static_cast<float>(1.0 / static_cast<double>(group));
}

}  // namespace nibble::cuda
