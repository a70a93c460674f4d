// delta_inverse.cuh: X = (I + L)^-1 of a chunk in shared memory, in the order of core/numerics/delta_order.h; four warps.
// Two rows by four, two or one columns a lane, so that few blocks far from the diagonal keep all warps busy.
#pragma once

#include "backends/cuda/ops/delta_grid.cuh"
#include "core/numerics/delta_order.h"

namespace nibble::cuda {

constexpr int kInverseStride = kDeltaChunk + 4;  // of L and X: float4 of neighbouring rows lie in different banks
constexpr int kInverseBlock = num::kDeltaBlock;

namespace inverse {

template <int N>
__device__ __forceinline__ void read(const float* from, float (&to)[N]) {
  if constexpr (N == 4) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else if constexpr (N == 2) {
    const float2 v = *reinterpret_cast<const float2*>(from);
    to[0] = v.x, to[1] = v.y;
  } else {
    to[0] = *from;
  }
}
template <int N>
__device__ __forceinline__ void write(float* to, const float (&v)[N], float sign) {
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = sign * v[i];
}

// sum[2][Cols] of rows `left` and the next, columns right[0] ..: chains over `count` of left[m] * right[m * stride].
template <int Cols>
__device__ __forceinline__ void extend(const float* left, const float* right, int stride, int count, float (&sum)[2][Cols]) {
#pragma unroll (Cols == 4 ? 1 : 2)
  for (int m = 0; m < count; m += 4) {
    float a[2][4], b[4][Cols];
    read<4>(left + m, a[0]);
    read<4>(left + kInverseStride + m, a[1]);
#pragma unroll
    for (int n = 0; n < 4; ++n) read<Cols>(right + (m + n) * stride, b[n]);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < Cols; ++j) sum[i][j] = num::fma(a[i][n], b[n][j], sum[i][j]);
      }
    }
  }
}

// A block of the diagonal, a column a lane; lanes from 16 on do the same again.
__device__ __forceinline__ void diagonal(const float* lower, float* x, int lane) {
  const int j = lane % kInverseBlock;
  float column[kInverseBlock];
#pragma unroll
  for (int i = 0; i < kInverseBlock; ++i) {
    float sum = 0.0f;
#pragma unroll
    for (int m = 0; m < i; ++m) sum = num::fma(lower[i * kInverseStride + m], column[m], sum);
    column[i] = i == j ? 1.0f : i < j ? 0.0f : -sum;
    if (lane < kInverseBlock) x[i * kInverseStride + j] = column[i];
  }
}

// 4 Cols columns of block (row, column), all of whose nearer blocks are there; a warp. y: its own.
template <int Cols>
__device__ __forceinline__ void part(const float* lower, float* x, float* y, int row, int column, int first, int lane) {
  const int i = lane / 4 * 2, j = lane % 4 * Cols;
  float sum[2][Cols] = {}, made[2][Cols] = {};
  extend<Cols>(lower + (row + i) * kInverseStride + column, x + column * kInverseStride + column + first + j,
               kInverseStride, row - column, sum);
#pragma unroll
  for (int n = 0; n < 2; ++n) write<Cols>(y + (i + n) * kInverseStride + j, sum[n], 1.0f);
  __syncwarp();
  extend<Cols>(x + (row + i) * kInverseStride + row, y + j, kInverseStride, kInverseBlock, made);
  __syncwarp();
#pragma unroll
  for (int n = 0; n < 2; ++n) write<Cols>(x + (row + i + n) * kInverseStride + column + first + j, made[n], -1.0f);
}

}  // namespace inverse

__device__ __forceinline__ void invert(const float* lower, float* x, int warp, int lane) {
  constexpr int kDown = kInverseBlock * (kInverseStride + 1);  // to the next block of the diagonal
  // Y: blocks of X above the diagonal, which nobody reads.
  float* const y = x + (warp < 3 ? (warp + 1) * kInverseBlock : kInverseBlock * kInverseStride + 3 * kInverseBlock);
  inverse::diagonal(lower + warp * kDown, x + warp * kDown, lane);
  __syncthreads();
  if (warp > 0) inverse::part<4>(lower, x, y, warp * kInverseBlock, (warp - 1) * kInverseBlock, 0, lane);
  __syncthreads();
  inverse::part<2>(lower, x, y, (2 + warp / 2) * kInverseBlock, warp / 2 * kInverseBlock, warp % 2 * 8, lane);
  __syncthreads();
  inverse::part<1>(lower, x, y, 3 * kInverseBlock, 0, warp * 4, lane);
  __syncthreads();
}

}  // namespace nibble::cuda
