// fragments.cuh: whole rows and columns out of the fragments of a 16 x 8 result, for emulated instructions.
#pragma once

#include <cstdint>

namespace nibble::cuda {

#if defined(__CUDACC__)

// What the four results of lane 4 g + p need: rows g and g + 8 of A, columns 2 p and 2 p + 1 of B, eight words
// each in order of k. A word q of a row lies in lane 4 g + q: a.x and a.y (row g + 8) the first half of k, a.z
// and a.w the second; a word of column n in lane 4 n + q, b.x and b.y. All lanes take part.
struct Gathered {
  std::uint32_t upper[8], lower[8], left[8], right[8];
};

static __device__ __forceinline__ Gathered gathered_16x8(uint4 a, uint2 b) {
  const int lane = static_cast<int>(threadIdx.x & 31u), g = lane >> 2, p = lane & 3;
  Gathered out;
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    out.upper[q] = __shfl_sync(~0u, a.x, 4 * g + q);
    out.lower[q] = __shfl_sync(~0u, a.y, 4 * g + q);
    out.upper[4 + q] = __shfl_sync(~0u, a.z, 4 * g + q);
    out.lower[4 + q] = __shfl_sync(~0u, a.w, 4 * g + q);
    out.left[q] = __shfl_sync(~0u, b.x, 8 * p + q);
    out.left[4 + q] = __shfl_sync(~0u, b.y, 8 * p + q);
    out.right[q] = __shfl_sync(~0u, b.x, 8 * p + 4 + q);
    out.right[4 + q] = __shfl_sync(~0u, b.y, 8 * p + 4 + q);
  }
  return out;
}

#endif

}  // namespace nibble::cuda
