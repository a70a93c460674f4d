// row_max.cuh: the largest magnitude of a row that the blocks of one cluster share, for each of their threads.
// Clusters are of sm_90 and later; elsewhere row_max() is declared and its kernels are never launched.
#pragma once

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
// What the blocks of a row send each other: a block's largest magnitude to all, counted in bytes by a barrier there.
struct RowMax {
  unsigned of_blocks[kMostBlocksOfRow];
  unsigned long long arrived;
};
__device__ __forceinline__ RowMax& shared_row_max() {
  __shared__ RowMax shared;
  return shared;
}
__device__ __forceinline__ unsigned blocks_of_row() {
  unsigned n;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n));
  return n;
}

// Between blocks_start() and row_max() a thread does what needs no other block: by then all blocks have started, and
// their shared memory can be written.
__device__ __forceinline__ void blocks_start() {
  if (threadIdx.x == 0) {
    const auto arrived = static_cast<unsigned>(__cvta_generic_to_shared(&shared_row_max().arrived));
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], 1;\n"
        "fence.mbarrier_init.release.cluster;\n"
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(arrived),
        "r"(blocks_of_row() * 4u)
        : "memory");
  }
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

// All threads of all blocks of the cluster, after blocks_start(). No block ends before it has what the others send.
__device__ __forceinline__ unsigned row_max(unsigned most, unsigned* maxima) {
  RowMax& shared = shared_row_max();
  most = block_of_warps_max(most, maxima);
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  const unsigned blocks = blocks_of_row();
  if (blocks == 1) return most;  // its own memory is no other block's, and memcheck would say so
  const auto arrived = static_cast<unsigned>(__cvta_generic_to_shared(&shared.arrived));
  if (threadIdx.x < blocks) {
    asm volatile(
        "{\n"
        ".reg .u32 to, there;\n"
        "mapa.shared::cluster.u32 to, %0, %2;\n"
        "mapa.shared::cluster.u32 there, %1, %2;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [to], %3, [there];\n"
        "}" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(shared.of_blocks + blockIdx.x))),
        "r"(arrived), "r"(threadIdx.x), "r"(most)
        : "memory");
  }
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra again;\n"
      "}" ::"r"(arrived)
      : "memory");
  return warp_max(threadIdx.x % 32 < blocks ? shared.of_blocks[threadIdx.x % 32] : 0u);
}
#else
__device__ __forceinline__ void blocks_start() {}
__device__ __forceinline__ unsigned row_max(unsigned most, unsigned*) { return most; }
#endif

}  // namespace nibble::cuda
