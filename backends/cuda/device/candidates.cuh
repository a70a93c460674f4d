// candidates.cuh: logits as the sampler ranks them, and the block-wide steps of its second kernel.
// A candidate is one integer whose ascending order is (logit descending, id ascending), as the
// CPU's.
#pragma once

#include "backends/cuda/device/rows.cuh"

namespace nibble::cuda {

using Key = unsigned long long;
constexpr Key kNoKey = ~0ull;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;
constexpr int kPickThreads = 1024, kPickWarps = kPickThreads / 32;
static_assert(kPickWarps == 32);

// Logits are neither NaN nor -0.
__device__ __forceinline__ unsigned rank_of(float z) {
  const unsigned u = num::bit_cast<unsigned>(z);
  return u ^ ((u >> 31) != 0 ? 0u : 0x7FFFFFFFu);
}
__device__ __forceinline__ Key key_of(unsigned rank, int id) {
  return static_cast<Key>(rank) << 32 | static_cast<unsigned>(id);
}
__device__ __forceinline__ unsigned rank_in(Key k) {
  return static_cast<unsigned>(k >> 32);
}
__device__ __forceinline__ int id_in(Key k) {
  return static_cast<int>(static_cast<unsigned>(k));
}
__device__ __forceinline__ float logit_in(Key k) {
  const unsigned u = rank_in(k);
  return num::bit_cast<float>(u ^ ((u >> 31) != 0 ? 0u : 0x7FFFFFFFu));
}

__device__ __forceinline__ Key warp_min(Key k) {
  for (int s = 16; s > 0; s /= 2) k = min(k, __shfl_xor_sync(kAllLanes, k, s));
  return k;
}

// The functions below are called by all kPickThreads threads of a block; `shared` is theirs while
// they run.

__device__ __forceinline__ Key block_min(Key k, Key* shared) {
  k = warp_min(k);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = k;
  __syncthreads();
  return warp_min(shared[threadIdx.x % 32]);
}

// Sum of v over the threads before this one; *total over all.
__device__ __forceinline__ unsigned block_sum_before(unsigned v, unsigned* shared,
                                                     unsigned* total) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  unsigned up_to = v;
  for (int s = 1; s < 32; s *= 2) {
    const unsigned before = __shfl_up_sync(kAllLanes, up_to, s);
    if (lane >= s) up_to += before;
  }
  __syncthreads();
  if (lane == 31) shared[warp] = up_to;
  __syncthreads();
  unsigned of_warps = shared[lane];
  for (int s = 1; s < 32; s *= 2) {
    const unsigned before = __shfl_up_sync(kAllLanes, of_warps, s);
    if (lane >= s) of_warps += before;
  }
  *total = __shfl_sync(kAllLanes, of_warps, 31);
  const unsigned before_warp = __shfl_sync(kAllLanes, of_warps, warp > 0 ? warp - 1 : 0);
  return up_to - v + (warp > 0 ? before_warp : 0u);
}

// The k-th smallest rank among n keys, 1 <= k <= n, one bit after the other.
__device__ __forceinline__ unsigned kth_rank(const Key* keys, int n, int k) {
  const int t = static_cast<int>(threadIdx.x);
  unsigned found = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const unsigned most = found | ((1u << bit) - 1u);
    int up_to = 0;
    for (int i = 0; i < n; i += kPickThreads) {
      up_to += __syncthreads_count(i + t < n && rank_in(keys[i + t]) <= most);
    }
    if (up_to < k) found |= 1u << bit;
  }
  return found;
}

constexpr int kDigits = 256;

// One pass of a stable radix sort by 8 bits at `shift`. Each warp counts and moves a stretch of its
// own, so the pass has a handful of barriers whatever n is. `digits`: [kPickWarps * kDigits].
__device__ __forceinline__ void radix_pass(const Key* from, Key* to, int n, int shift,
                                           unsigned* digits, unsigned* shared) {
  const int t = static_cast<int>(threadIdx.x), lane = t % 32, warp = t / 32;
  const int stretch = ((n + kPickWarps - 1) / kPickWarps + 31) / 32 * 32;
  const int begin = min(n, warp * stretch), end = min(n, begin + stretch);
  unsigned* const mine = digits + warp * kDigits;
  for (int d = lane; d < kDigits; d += 32) mine[d] = 0;
  __syncwarp();
  for (int i = begin + lane; i < end; i += 32) {
    atomicAdd(mine + (from[i] >> shift & (kDigits - 1)), 1u);
  }
  __syncthreads();
  // thread t takes digit t / 4 of warps 8 (t % 4) .. + 7: all counts in the order of the result
  unsigned* const part = digits + 8 * (t % 4) * kDigits + t / 4;
  unsigned sum = 0, total = 0;
  for (int w = 0; w < 8; ++w) sum += part[w * kDigits];
  unsigned at = block_sum_before(sum, shared, &total);
  for (int w = 0; w < 8; ++w) {
    const unsigned count = part[w * kDigits];
    part[w * kDigits] = at;
    at += count;
  }
  __syncthreads();
  for (int i = begin; i < end; i += 32) {
    const bool there = i + lane < end;
    const Key key = there ? from[i + lane] : 0;
    const unsigned digit = there ? static_cast<unsigned>(key >> shift) & (kDigits - 1) : kDigits;
    const unsigned same = __match_any_sync(kAllLanes, digit);
    const int before = __popc(same & ((1u << lane) - 1u));
    const unsigned first = there ? mine[digit] : 0;
    __syncwarp();
    if (there) to[first + static_cast<unsigned>(before)] = key;
    if (there && before == 0) mine[digit] = first + static_cast<unsigned>(__popc(same));
    __syncwarp();
  }
  __syncthreads();
}

}  // namespace nibble::cuda
