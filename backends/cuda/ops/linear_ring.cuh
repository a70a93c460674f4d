// linear_ring.cuh: the ring of stages in shared memory through which weights and x reach a kernel's consumers.
//   a stage   up to S::kDeep tiles of 64 columns of K: boxes of x (swizzled), and for each of S::kGroups row tiles of 64
//             their units. Few large copies: the copy engine takes about 60 ns for each, however short it is. full:
//             one arrival and the bytes; empty: all lanes of all consumers of a stage
//   S         kDeep, kStages, kTokens, kGroups, and bytes: kTokenBytes of a k tile of x, kTileBytes of a k tile of a row
//             tile, kInputBytes, kWeightBytes ([group][kDeep] tiles) of a stage
#pragma once

#include <cuda.h>

#include "backends/cuda/device/sm90.cuh"
#include "backends/cuda/ops/linear_schedule.cuh"

namespace nibble::cuda {

// Whether the warpgroup that produces gives back what the others take: else they wait for registers for ever. A block of
// a kernel with launch bounds has what ptxas may use, a multiple of 8 for each thread.
constexpr bool registers_suffice(int threads, int blocks, int producer, int consumer) {
  return 128 * producer + (threads - 128) * consumer <= 65536 / (threads * blocks) / 8 * 8 * threads;
}

// Seen by one side.
struct WgmmaRing {
  std::uint32_t start, barriers;  // tiles of x, then weights; full barriers, then empty ones
  int stages, stage = 0;
  std::uint32_t parity = 0;
  bool filled = false;  // once, each stage
  __device__ __forceinline__ Barrier full() const { return {barriers + static_cast<std::uint32_t>(stage) * 8}; }
  __device__ __forceinline__ Barrier empty(int of) const {
    return {barriers + static_cast<std::uint32_t>(stages + of) * 8};
  }
  __device__ __forceinline__ void next() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
      filled = true;
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

// The part of a stage at `to` that is weights: `deep` k tiles from k on of tile `row`, of an image whose codes lie there;
// one thread. `k_tiles`: of the image.
template <class S>
__device__ __forceinline__ void fill_weights(const LinearParams& l, const std::byte* codes, int row, int k_tiles, int k,
                                             int deep, std::uint32_t to, Barrier full) {
  const int last_row_tile = static_cast<int>(l.weight.padded_rows / kTileRows) - 1;
#pragma unroll
  for (int g = 0; g < S::kGroups; ++g) {  // past the weight's rows: the last tile again, whose sums nobody reads
    const int row_tile = min(row * S::kGroups + g, last_row_tile);
    const std::int64_t tile = static_cast<std::int64_t>(row_tile) * k_tiles + k;
    copy_bytes(to + g * S::kDeep * S::kTileBytes, codes + tile * S::kTileBytes,
               static_cast<std::uint32_t>(deep * S::kTileBytes), full);
  }
}
// Of a weight or of joined ones.
template <class S>
__device__ __forceinline__ void fill_weights(const LinearParams& l, int row, int k_tiles, int k, int deep, std::uint32_t to,
                                             Barrier full) {
  if (l.parts == 0) return fill_weights<S>(l, l.weight.codes, row, k_tiles, k, deep, to, full);
  const int last_row_tile = static_cast<int>(l.weight.padded_rows / kTileRows) - 1;
#pragma unroll 1
  for (int g = 0; g < S::kGroups; ++g) {
    const int row_tile = min(row * S::kGroups + g, last_row_tile);
    const LinearPart& part = l.part[part_of(l, row_tile)];
    const std::int64_t tile = static_cast<std::int64_t>(row_tile - part.tile) * k_tiles + k;
    copy_bytes(to + static_cast<std::uint32_t>(g * S::kDeep * S::kTileBytes), part.codes + tile * S::kTileBytes,
               static_cast<std::uint32_t>(deep * S::kTileBytes), full);
  }
}
// The ring's stage is to hold `deep` k tiles from k on: its weights are on their way; one thread.
template <class S>
__device__ __forceinline__ void announce(const WgmmaParams& p, const WgmmaWork& w, int k, int deep, const WgmmaRing& ring) {
  const LinearParams& l = p.linear;
  ring.empty(ring.stage).wait(ring.parity ^ 1);
  const Barrier full = ring.full();
  if (l.unfed && ring.filled) return full.arrive();
  const bool at_once = S::kDeep > 1 && p.side_by_side;  // k tiles that are not asked for too
  full.arrive_expecting(static_cast<std::uint32_t>((at_once ? S::kInputBytes : deep * S::kTokenBytes) +
                                                   deep * S::kGroups * S::kTileBytes));
  fill_weights<S>(l, w.row, l.k_tiles, k, deep,
                  ring.start + S::kStages * S::kInputBytes + static_cast<std::uint32_t>(ring.stage) * S::kWeightBytes, full);
}
// And its rows of x.
template <class S>
__device__ __forceinline__ void fill_rows(const CUtensorMap& map, const WgmmaParams& p, const WgmmaWork& w, int k, int deep,
                                          const WgmmaRing& ring) {
  if (p.linear.unfed && ring.filled) return;
  const Barrier full = ring.full();
  const std::uint32_t x = ring.start + static_cast<std::uint32_t>(ring.stage) * S::kInputBytes;
  if (S::kDeep > 1 && p.side_by_side) return copy_boxes(x, &map, k, w.token * S::kTokens, full);
#pragma unroll
  for (int t = 0; t < S::kDeep; ++t) {
    if (t < deep) copy_box(x + t * S::kTokenBytes, &map, (k + t) * kTileCols, w.token * S::kTokens, full);
  }
}
// Of a unit at k tile k. `segments`: no stage reaches into the next segment.
template <class S>
__device__ __forceinline__ int depth_of(const WgmmaParams& p, const WgmmaWork& w, int k, bool segments) {
  const int deep = min(S::kDeep, w.last - k);
  return segments ? min(deep, p.linear.segment_tiles - k % p.linear.segment_tiles) : deep;
}
// A unit's stages, of which the first `announced` are so already.
template <class S>
__device__ __forceinline__ void produce(const CUtensorMap& map, const WgmmaParams& p, const WgmmaWork& w, bool segments,
                                        WgmmaRing& ring, int announced = 0) {
#pragma unroll 1
  for (int k = w.first; k < w.last;) {
    const int deep = depth_of<S>(p, w, k, segments);
    if (announced-- <= 0) announce<S>(p, w, k, deep, ring);
    fill_rows<S>(map, p, w, k, deep, ring);
    ring.next();
    k += deep;
  }
}
// Announces what the ring holds of a unit, which comes first. Returns how many stages.
template <class S>
__device__ __forceinline__ int announce_first(const WgmmaParams& p, const WgmmaWork& w, bool segments, WgmmaRing ring) {
  int stages = 0;
#pragma unroll 1
  for (int k = w.first; k < w.last && stages < S::kStages; ++stages) {
    const int deep = depth_of<S>(p, w, k, segments);
    announce<S>(p, w, k, deep, ring);
    ring.next();
    k += deep;
  }
  return stages;
}
// What was announced comes, for nobody: a block must not end before.
template <class S>
__device__ __forceinline__ void drain(const CUtensorMap& map, const WgmmaParams& p, const WgmmaWork& w, bool segments,
                                      WgmmaRing ring, int announced) {
#pragma unroll 1
  for (int k = w.first; announced-- > 0;) {
    const int deep = depth_of<S>(p, w, k, segments);
    fill_rows<S>(map, p, w, k, deep, ring);
    ring.full().wait(ring.parity);
    ring.next();
    k += deep;
  }
}

}  // namespace nibble::cuda
