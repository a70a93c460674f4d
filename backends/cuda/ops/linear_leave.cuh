// linear_leave.cuh: sums of a unit that is computed in parts, on their way through Launch::sums, for 128 threads that
// have a row tile of 64.
//   areas   0: accumulators of a unit that goes on elsewhere; 1: totals of its segments; 2: totals of a block's own
//           tiles, in memory. A split has no totals and its sums in areas 1 and 2
//   flags   one for each block: its slot is full; counters behind them: segments of a tile that came. A barrier of the
//           128 threads and one thread's release or acquire order what all of them wrote and read
#pragma once

#include "backends/cuda/ops/linear_schedule.cuh"
#include "backends/cuda/ops/linear_sums.cuh"

namespace nibble::cuda {

template <int SlotBytes, int Groups>
class LeftSums {
  static constexpr std::size_t kGroupFloat4 = SlotBytes / Groups / 16;

 public:
  // team: of 128 threads, with a named barrier (team + 1), a word at `arrived` in shared memory, and a row tile (group
  // team % Groups).
  __device__ __forceinline__ LeftSums(const WgmmaParams& p, int team, int thread, unsigned* arrived)
      : p_(p), team_(team), thread_(thread), arrived_(arrived) {}

  __device__ __forceinline__ float4* slot(int area, int block) const {
    return reinterpret_cast<float4*>(p_.sums + kFlagBytes +
                                     static_cast<std::size_t>(area) * p_.multiprocessors * kAreaPerProcessor) +
           (static_cast<std::size_t>(block) * Groups + static_cast<std::size_t>(team_ % Groups)) * kGroupFloat4;
  }

  // Takes what the block before left; waits for it.
  template <bool Totals, int N, int M>
  __device__ __forceinline__ void enter(float (&sum)[N], float (&total)[M], bool split) const {
    const int from = static_cast<int>(blockIdx.x) - 1;
    if (thread_ == 0) {
      unsigned there = 0;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(flag(from)) : "memory");
      } while (there == 0);
      *flag(from) = 0;
    }
    threads_sync(team_ + 1);
    load_sums(slot(0, from), sum, thread_);
    if constexpr (Totals) {
      if (!split) load_sums(slot(1, from), total, thread_);
    }
  }
  template <bool Totals, int N, int M>
  __device__ __forceinline__ void leave(const float (&sum)[N], const float (&total)[M], bool split) const {
    const int block = static_cast<int>(blockIdx.x);
    store_sums(slot(0, block), sum, thread_);
    if constexpr (Totals) {
      if (!split) store_sums(slot(1, block), total, thread_);
    }
    threads_sync(team_ + 1);
    if (thread_ == 0) {
      asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag(block)), "r"(1u) : "memory");
    }
  }
  // Leaves a segment's sum; true for the block that came last, which has the total in `sum` then.
  template <int N>
  __device__ __forceinline__ bool combine(int tile, int segment, int segments, float (&sum)[N]) const {
    float4* const sums = slot(1, 0) - static_cast<std::size_t>(team_ % Groups) * kGroupFloat4 +
                         (static_cast<std::size_t>(tile) * Groups + static_cast<std::size_t>(team_ % Groups)) *
                             static_cast<std::size_t>(segments) * kGroupFloat4;
    store_sums(sums + static_cast<std::size_t>(segment) * kGroupFloat4, sum, thread_);
    threads_sync(team_ + 1);
    if (thread_ == 0) {
      unsigned before;
      asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                   : "=r"(before)
                   : "l"(flag(kCounters + tile))
                   : "memory");
      arrived_[team_] = before;
      if (before + 1 == static_cast<unsigned>(segments)) *flag(kCounters + tile) = 0;
    }
    threads_sync(team_ + 1);
    if (arrived_[team_] + 1 != static_cast<unsigned>(segments)) return false;
    clear(sum);
    for (int s = 0; s < segments; ++s) add_sums(sums + static_cast<std::size_t>(s) * kGroupFloat4, sum, thread_);
    return true;
  }

 private:
  __device__ __forceinline__ unsigned* flag(int of) const {
    return reinterpret_cast<unsigned*>(p_.sums) + of * Groups + team_ % Groups;
  }

  const WgmmaParams& p_;
  int team_, thread_;
  unsigned* arrived_;
};

}  // namespace nibble::cuda
