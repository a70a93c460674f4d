// linear_group_feed.cuh: what brings the stages (linear_ring.cuh) of grouped kernels: a warpgroup.
//   weights   as elsewhere, by the copy engine; one thread asks
//   x         rows lie anywhere (row order[i] / k of it), and no box of sm_90's tensor maps holds such: 128 threads copy
//             16 bytes each. They put them where a box would (swizzled), zero past the columns of K. A tile's rows that its
//             expert does not have stay what they were: nobody reads their sums
//   full      one arrival and the bytes, and one arrival of each thread when its copies are there: it looks kLag stages
//             later, when they have come. So many stages are missing to the consumers, not to the ring: the stage that is
//             filled next was announced long ago
#pragma once

#include "backends/cuda/ops/linear_group_tiles.cuh"
#include "backends/cuda/ops/linear_ring.cuh"

namespace nibble::cuda {

constexpr int kFeedThreads = 128, kFullArrivals = 1 + kFeedThreads;

// Fence: wgmma reads x, not load_matrices.
template <class S, bool Fence>
class GroupFeed {
  static constexpr int kAcross = kTileCols / 8, kDown = kFeedThreads / kAcross;  // threads, 8 columns each
  static constexpr int kRows = S::kTokens < kDown ? 1 : S::kTokens / kDown;  // of a thread
  static constexpr int kSets = S::kTokens < kDown ? kDown / S::kTokens : 1;  // of threads, which share k tiles
  static constexpr std::uint32_t kBetween = kDown * kTileCols * 2;  // a thread's rows in shared memory
  static constexpr int kLag = S::kStages / 2;
  // Consumers that wait for a stage hold the one before it at most: the stage kLag behind has room.
  static_assert(kLag >= 1 && kLag + 2 <= S::kStages);

 public:
  __device__ __forceinline__ GroupFeed(const GroupedParams& p, const WgmmaRing& ring) : p_(p), ring_(ring), told_(ring) {
    const int thread = static_cast<int>(threadIdx.x) % kFeedThreads, below = thread / kAcross;
    chunk_ = thread % kAcross;
    row_ = below % S::kTokens;
    set_ = below / S::kTokens;
    to_ = ring.start + static_cast<std::uint32_t>(row_ * (kTileCols * 2) + (chunk_ ^ row_ % 8) * 16);
  }

  __device__ __forceinline__ void run(const GroupSchedule<S::kTokens>& schedule) {
    GroupWork w;
    for (int i = 0; schedule.at(i, w); ++i) {
      find_rows(w);
      int left = p_.segment_tiles;  // no stage reaches into the next segment
#pragma unroll 1
      for (int k = 0; k < p_.k_tiles;) {
        const int deep = min(S::kDeep, min(left, p_.k_tiles - k));
        fill_stage(w, k, deep);
        k += deep;
        left -= deep;
        if (left == 0) left = p_.segment_tiles;
      }
    }
    arrived<0>();
    while (pending_ > 0) tell();
  }

 private:
  __device__ __forceinline__ void find_rows(const GroupWork& w) {
    int row[kRows];
#pragma unroll
    for (int j = 0; j < kRows; ++j) row[j] = min(w.first + row_ + j * kDown, w.end - 1);
    if (p_.per_token != 0) {
#pragma unroll
      for (int j = 0; j < kRows; ++j) row[j] = __ldg(p_.order + row[j]);  // all on their way at once
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        row[j] = static_cast<int>(static_cast<unsigned>(row[j]) / static_cast<unsigned>(p_.per_token));
      }
    }
    const int across = static_cast<int>(p_.x_stride / 8);  // units of 16 bytes
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      from_[j] = w.first + row_ + j * kDown < w.end ? row[j] * across + chunk_ : -1;
    }
  }
  __device__ __forceinline__ void fill_stage(const GroupWork& w, int k, int deep) {
    ring_.empty(ring_.stage).wait(ring_.parity ^ 1);
    const auto stage = static_cast<std::uint32_t>(ring_.stage);
    if (threadIdx.x % kFeedThreads == 0) {
      const Barrier full = ring_.full();
      const std::int64_t own = w.expert * p_.expert_bytes;
      full.arrive_expecting(static_cast<std::uint32_t>(deep * (S::kWeightBytes / S::kDeep)));
      fill_weights<S>(p_, p_.weight.codes + own, w.row, k, deep,
                      ring_.start + S::kStages * S::kInputBytes + stage * S::kWeightBytes, full);
    }
#pragma unroll
    for (int t0 = 0; t0 < S::kDeep; t0 += kSets) {
      const int t = t0 + set_;
      if (t < deep) fill_rows(k + t, to_ + stage * S::kInputBytes + static_cast<std::uint32_t>(t * S::kTokenBytes));
    }
    copies_commit();
    ring_.next();
    if (++pending_ <= kLag) return;
    arrived<kLag>();
    tell();
  }
  __device__ __forceinline__ void fill_rows(int tile, std::uint32_t to) const {
    const int columns = static_cast<int>(p_.weight.cols) - tile * kTileCols;
    const std::byte* const x = p_.x + tile * (kTileCols * 2);
    if (columns >= kTileCols) {
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        if (from_[j] >= 0) copy_16(to + kBetween * j, x + static_cast<std::int64_t>(from_[j]) * 16);
      }
    } else {
      const auto bytes = static_cast<std::uint32_t>(2 * max(0, min(columns - chunk_ * 8, 8)));
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        if (from_[j] >= 0) copy_16(to + kBetween * j, x + static_cast<std::int64_t>(from_[j]) * 16, bytes);
      }
    }
  }
  template <int Pending>
  __device__ __forceinline__ void arrived() const {
    copies_wait<Pending>();
    if constexpr (Fence) fence_shared_writes();
  }
  // This thread's copies to the oldest stage that it did not speak of have come.
  __device__ __forceinline__ void tell() {
    told_.full().arrive();
    told_.next();
    --pending_;
  }

  const GroupedParams& p_;
  WgmmaRing ring_, told_;
  int chunk_, row_, set_, pending_ = 0;
  std::uint32_t to_;  // of this thread's first row in the first stage
  int from_[kRows];   // units of 16 bytes from x; -1: no row
};

}  // namespace nibble::cuda
