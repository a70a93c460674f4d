// eights_row.cuh: a whole row of float32 in a block that norms it: where it lies in shared memory, and its tree.
#pragma once

#include "backends/cuda/device/fold.cuh"
#include "backends/cuda/ops/eights.cuh"

namespace nibble::cuda {

constexpr int kEightsOfRow = 2;  // a thread's
constexpr int kMostThreadsOfRow = 320;
constexpr std::int32_t kMostColsOfRow = 8 * kEightsOfRow * kMostThreadsOfRow;

// A row in shared memory: chunks of 16 bytes, chunk c of 128 bytes at place c ^ (row of 128 bytes % 8), so that eight
// lanes with neighbouring chunks, every second or every fourth use all banks. 256 columns on places are the same.
constexpr std::size_t padded(std::int32_t cols) { return static_cast<std::size_t>((cols + 31) / 32 * 32); }
__device__ __forceinline__ int place_of(int chunk) { return chunk ^ (chunk / 8 & 7); }

__device__ __forceinline__ void load8_of_row(const float* row, int column, float* v) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 four = reinterpret_cast<const float4*>(row)[place_of(column / 4 + i)];
    v[4 * i] = four.x, v[4 * i + 1] = four.y, v[4 * i + 2] = four.z, v[4 * i + 3] = four.w;
  }
}

// The sum of this thread's lane of the long tree; threads behind the lanes have none.
__device__ __forceinline__ float lane_squares(const float* row, int cols) {
  constexpr int kAtOnce = 10;
  const int t = static_cast<int>(threadIdx.x);
  float sum = 0.0f;
  if (t >= num::kTreeLong) return sum;
  const float* const own = row + 4 * place_of(t / 4) + t % 4;
#pragma unroll 1
  for (int start = 0; start < cols; start += kAtOnce * num::kTreeLong) {
    float v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = start + num::kTreeLong * i;
      v[i] = at + t < cols ? own[at] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sum = num::fma(v[i], v[i], sum);  // zeros add nothing
  }
  return sum;
}

}  // namespace nibble::cuda
