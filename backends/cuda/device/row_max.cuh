// row_max.cuh: the largest magnitude of a row that the blocks of one cluster share, for each of their threads.
// Clusters are of sm_90 and later; elsewhere row_max() is declared and its kernels are never launched.
#pragma once

#include <cooperative_groups.h>

#include "backends/cuda/device/pack.cuh"

namespace nibble::cuda {

constexpr int kMostBlocksOfRow = 8;  // clusters of this size run on every card that has clusters

__device__ __forceinline__ unsigned warp_max(unsigned m) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(0xFFFFFFFFu, m);
#else
  return team_max(m, 32);
#endif
}

// Of one block: `maxima` shared, one a warp.
__device__ __forceinline__ unsigned block_of_warps_max(unsigned most, unsigned* maxima) {
  most = warp_max(most);
  if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = most;
  __syncthreads();
  return warp_max(threadIdx.x % 32 < blockDim.x / 32 ? maxima[threadIdx.x % 32] : 0u);
}

#if __CUDA_ARCH__ >= 900
// Between blocks_start() and row_max() a thread does what needs no other block: by then all blocks have started, and
// their shared memory can be written.
__device__ __forceinline__ void blocks_start() { asm volatile("barrier.cluster.arrive.relaxed.aligned;"); }

// All threads of all blocks of the cluster, after blocks_start().
__device__ __forceinline__ unsigned row_max(unsigned most, unsigned* maxima) {
  __shared__ unsigned of_blocks[kMostBlocksOfRow];
  most = block_of_warps_max(most, maxima);
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  const auto cluster = cooperative_groups::this_cluster();
  const unsigned blocks = cluster.num_blocks();
  if (threadIdx.x < blocks) *cluster.map_shared_rank(of_blocks + cluster.block_rank(), threadIdx.x) = most;
  cluster.sync();  // nobody writes here any more: a block may end
  unsigned all = 0;
  for (unsigned i = 0; i < blocks; ++i) all = max(all, of_blocks[i]);
  return all;
}
#else
__device__ __forceinline__ void blocks_start() {}
__device__ __forceinline__ unsigned row_max(unsigned most, unsigned*) { return most; }
#endif

}  // namespace nibble::cuda
