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

// The part of a stage at `to` that is weights: `deep` k tiles from k on of tile `row`, of an image whose codes lie there;
// one thread.
template <class S>
__device__ __forceinline__ void fill_weights(const LinearParams& l, const std::byte* codes, int row, int k, int deep,
                                             std::uint32_t to, Barrier full) {
  const int last_row_tile = static_cast<int>(l.weight.padded_rows / kTileRows) - 1;
#pragma unroll
  for (int g = 0; g < S::kGroups; ++g) {  // past the weight's rows: the last tile again, whose sums nobody reads
    const int row_tile = min(row * S::kGroups + g, last_row_tile);
    const std::int64_t tile = static_cast<std::int64_t>(row_tile) * l.k_tiles + k;
    copy_bytes(to + g * S::kDeep * S::kTileBytes, codes + tile * S::kTileBytes,
               static_cast<std::uint32_t>(deep * S::kTileBytes), full);
  }
}
// Fills the ring's stage with `deep` k tiles from k on; one thread.
template <class S>
__device__ __forceinline__ void fill(const CUtensorMap& map, const WgmmaParams& p, const WgmmaWork& w, int k, int deep,
                                     const WgmmaRing& ring) {
  const LinearParams& l = p.linear;
  ring.empty(ring.stage).wait(ring.parity ^ 1);
  const Barrier full = ring.full();
  const bool at_once = S::kDeep > 1 && p.side_by_side;  // k tiles that are not asked for too
  full.arrive_expecting(static_cast<std::uint32_t>((at_once ? S::kInputBytes : deep * S::kTokenBytes) +
                                                   deep * S::kGroups * S::kTileBytes));
  const auto stage = static_cast<std::uint32_t>(ring.stage);
  fill_weights<S>(l, l.weight.codes, w.row, k, deep, ring.start + S::kStages * S::kInputBytes + stage * S::kWeightBytes,
                  full);
  const std::uint32_t x = ring.start + stage * S::kInputBytes;
  if (at_once) return copy_boxes(x, &map, k, w.token * S::kTokens, full);
#pragma unroll
  for (int t = 0; t < S::kDeep; ++t) {
    if (t < deep) copy_box(x + t * S::kTokenBytes, &map, (k + t) * kTileCols, w.token * S::kTokens, full);
  }
}
// A unit's stages. `segments`: none reaches into the next segment.
template <class S>
__device__ __forceinline__ void produce(const CUtensorMap& map, const WgmmaParams& p, const WgmmaWork& w, bool segments,
                                        WgmmaRing& ring) {
#pragma unroll 1
  for (int k = w.first; k < w.last;) {
    int deep = min(S::kDeep, w.last - k);
    if (segments) deep = min(deep, p.linear.segment_tiles - k % p.linear.segment_tiles);
    fill<S>(map, p, w, k, deep, ring);
    ring.next();
    k += deep;
  }
}

}  // namespace nibble::cuda
