// tree.cuh: num::tree_reduce (core/numerics/reduce.h) by the threads of a warp or of a block, same bits.
//
// A thread is a lane of the tree (or, of a block of 256, only the first 32 are where the tree has 32
// lanes). Folding by xor instead of "down" gives every thread the sum: addition commutes, so lane j
// holds what lane j mod s holds. All threads of the warp or block must call together.
#pragma once

#include "backends/cuda/device/rows.cuh"
#include "core/numerics/reduce.h"

namespace nibble::cuda {

constexpr int kWarp = 32;
constexpr int kTreeThreads = num::kTreeLong;  // of a block that calls block_tree
static_assert(num::kTreeShort == kWarp);

__device__ __forceinline__ float warp_fold(float lane) {
  for (int s = kWarp / 2; s > 0; s /= 2) {
    lane = num::add(lane, __shfl_xor_sync(0xFFFFFFFFu, lane, s));
  }
  return lane;
}

// step(sum so far of the lane, index) -> new sum of the lane. n <= num::kTreeSwitch.
template <class Step>
__device__ __forceinline__ float warp_tree(int n, Step step) {
  float sum = 0.0f;
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < n; i += kWarp) sum = step(sum, i);
  return warp_fold(sum);
}

// Any n, by a block of exactly kTreeThreads; `lanes` is shared memory, [kTreeThreads], free again on
// return.
template <class Step>
__device__ __forceinline__ float block_tree(std::int64_t n, Step step, float* lanes) {
  const int t = static_cast<int>(threadIdx.x), count = num::tree_lanes(n);
  float sum = 0.0f;
  if (t < count) {
    for (std::int64_t i = t; i < n; i += count) sum = step(sum, i);
  }
  if (count > kWarp) {
    lanes[t] = sum;
    __syncthreads();
    for (int s = kTreeThreads / 2; s >= kWarp; s /= 2) {
      if (t < s) lanes[t] = sum = num::add(lanes[t], lanes[t + s]);
      __syncthreads();
    }
  }
  if (t < kWarp) {
    sum = warp_fold(sum);
    if (t == 0) lanes[0] = sum;
  }
  __syncthreads();
  sum = lanes[0];
  __syncthreads();
  return sum;
}

// Steps over a row of either element type.
template <class T>
struct SumOf {
  const T* x;
  __device__ __forceinline__ float operator()(float s, std::int64_t i) const {
    return num::add(s, widen(x[i]));
  }
};
template <class T>
struct SquaresOf {
  const T* x;
  __device__ __forceinline__ float operator()(float s, std::int64_t i) const {
    const float v = widen(x[i]);
    return num::fma(v, v, s);
  }
};

template <class T>
__device__ __forceinline__ float warp_sum(const T* x, int n) {
  return warp_tree(n, SumOf<T>{x});
}
template <class T>
__device__ __forceinline__ float warp_sum_squares(const T* x, int n) {
  return warp_tree(n, SquaresOf<T>{x});
}
template <class T>
__device__ __forceinline__ float block_sum(const T* x, std::int64_t n, float* lanes) {
  return block_tree(n, SumOf<T>{x}, lanes);
}
template <class T>
__device__ __forceinline__ float block_sum_squares(const T* x, std::int64_t n, float* lanes) {
  return block_tree(n, SquaresOf<T>{x}, lanes);
}

// A team is a warp (of any block, n <= num::kTreeSwitch) or a whole block of kTreeThreads.
template <int kTeam, class Step>
__device__ __forceinline__ float team_tree(int n, Step step, float* lanes) {
  static_assert(kTeam == kWarp || kTeam == kTreeThreads);
  if constexpr (kTeam == kWarp) {
    return warp_tree(n, step);
  } else {
    return block_tree(n, step, lanes);
  }
}

}  // namespace nibble::cuda
