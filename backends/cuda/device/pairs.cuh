// pairs.cuh: what the elementwise ops make of two values.
#pragma once

#include "core/numerics/scalar.h"

namespace nibble::cuda {

struct Sum {
  __device__ __forceinline__ float operator()(float a, float b) const { return num::add(a, b); }
};
struct SiluTimes {
  __device__ __forceinline__ float operator()(float gate, float up) const {
    return num::mul(num::silu(gate), up);
  }
};
struct TimesSigmoid {
  __device__ __forceinline__ float operator()(float x, float gate) const {
    return num::mul(x, num::sigmoid(gate));
  }
};

}  // namespace nibble::cuda
