// fold.cuh: the last steps of the long tree (core/numerics/reduce.h) with one barrier, for a block
// that has its lanes' sums in registers.
#pragma once

#include "backends/cuda/device/tree.cuh"

namespace nibble::cuda {

// Thread t < 256 brings lane t; threads behind take part and bring nothing. Every thread gets the
// sum: each warp folds 256 to 32 for itself. `shared`: [256], free again after the next barrier.
__device__ __forceinline__ float block_fold(float lane, float* shared) {
  const int t = static_cast<int>(threadIdx.x);
  if (t < num::kTreeLong) shared[t] = lane;
  __syncthreads();
  const float* const v = shared + t % kWarp;
  const float even = num::add(num::add(v[0], v[128]), num::add(v[64], v[192]));
  const float odd = num::add(num::add(v[32], v[160]), num::add(v[96], v[224]));
  return warp_fold(num::add(even, odd));
}

}  // namespace nibble::cuda
