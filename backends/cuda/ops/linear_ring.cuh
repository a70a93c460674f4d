// linear_ring.cuh: the ring of stages in shared memory through which weights and x reach a kernel's consumers.
//   a stage   up to S::kDeep tiles of 64 columns of K: boxes of x (swizzled), for each of S::kGroups row tiles of 64
//             codes and block scales. full: one arrival and the bytes; empty: all lanes of all consumers of a stage
//   S         kDeep, kStages, kTokens, kGroups, and bytes: kTokenBytes, kCodeBytes, kScaleBytes of a k tile, kScalesAt
//             (codes [group][kDeep], then scales [group][kDeep]), kInputBytes, kWeightBytes of a stage
#pragma once

#include <cuda.h>

#include "backends/cuda/device/sm90.cuh"
#include "backends/cuda/ops/linear_schedule.cuh"

namespace nibble::cuda {

// Seen by one side.
struct WgmmaRing {
  std::uint32_t start, barriers;  // tiles of x, then weights; full barriers, then empty ones
  int stages, stage = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ Barrier full() const { return {barriers + static_cast<std::uint32_t>(stage) * 8}; }
  __device__ __forceinline__ Barrier empty(int of) const {
    return {barriers + static_cast<std::uint32_t>(stages + of) * 8};
  }
  __device__ __forceinline__ void next() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void skip(int some) {
    stage += some;
    if (stage >= stages) {
      stage -= stages;
      parity ^= 1;
    }
  }
};

// The part of a stage at `to` that is weights: `deep` k tiles from k on of tile `row`, of an image whose codes and scales
// lie there; one thread.
template <class S>
__device__ __forceinline__ void fill_weights(const LinearParams& l, const std::byte* codes, const std::byte* scales, int row,
                                             int k, int deep, std::uint32_t to, Barrier full) {
  const int last_row_tile = static_cast<int>(l.weight.padded_rows / kTileRows) - 1;
#pragma unroll(S::kGroups == 2 ? 2 : 1)  // a producer's registers are few
  for (int g = 0; g < S::kGroups; ++g) {  // past the weight's rows: the last tile again, whose sums nobody reads
    const int row_tile = min(row * S::kGroups + g, last_row_tile);
    const std::int64_t tile = static_cast<std::int64_t>(row_tile) * l.k_tiles + k;
    copy_bytes(to + g * S::kDeep * S::kCodeBytes, codes + tile * S::kCodeBytes,
               static_cast<std::uint32_t>(deep * S::kCodeBytes), full);
    if constexpr (S::kScaleBytes > 0) {
      copy_bytes(to + S::kScalesAt + g * S::kDeep * S::kScaleBytes, scales + tile * S::kScaleBytes,
                 static_cast<std::uint32_t>(deep * S::kScaleBytes), full);
    }
  }
}
// Fills the ring's stage with `deep` k tiles from k on; one thread.
template <class S>
__device__ __forceinline__ void fill(const CUtensorMap& map, const LinearParams& l, const WgmmaWork& w, int k, int deep,
                                     const WgmmaRing& ring) {
  ring.empty(ring.stage).wait(ring.parity ^ 1);
  const Barrier full = ring.full();
  full.arrive_expecting(static_cast<std::uint32_t>(deep * ((S::kInputBytes + S::kWeightBytes) / S::kDeep)));
  const auto stage = static_cast<std::uint32_t>(ring.stage);
  fill_weights<S>(l, l.weight.codes, l.weight.scales, w.row, k, deep,
                  ring.start + S::kStages * S::kInputBytes + stage * S::kWeightBytes, full);
#pragma unroll
  for (int t = 0; t < S::kDeep; ++t) {
    if (t < deep) {
      copy_box(ring.start + stage * S::kInputBytes + t * S::kTokenBytes, &map, (k + t) * kTileCols,
               w.token * S::kTokens, full);
    }
  }
}
// A unit's stages. `segments`: none reaches into the next segment.
template <class S>
__device__ __forceinline__ void produce(const CUtensorMap& map, const LinearParams& l, const WgmmaWork& w, bool segments,
                                        WgmmaRing& ring) {
#pragma unroll 1
  for (int k = w.first; k < w.last;) {
    int deep = min(S::kDeep, w.last - k);
    if (segments) deep = min(deep, l.segment_tiles - k % l.segment_tiles);
    fill<S>(map, l, w, k, deep, ring);
    ring.next();
    k += deep;
  }
}
// Every second of them, for kernels with stages of one k tile: `ahead` is how far the next of one's own is beyond the
// unit's first.
template <class S>
__device__ __forceinline__ void produce_every_second(const CUtensorMap& map, const LinearParams& l, const WgmmaWork& w,
                                                     int& ahead, WgmmaRing& ring) {
  static_assert(S::kDeep == 1);
  int k = w.first + ahead;
#pragma unroll 1
  for (; k < w.last; k += 2) {
    fill<S>(map, l, w, k, 1, ring);
    ring.skip(2);
  }
  ahead = k - w.last;
}

}  // namespace nibble::cuda
