// linear_group.cuh: y = x w^T with an expert for each row on sm_90: the products of linear_stream.cuh (32 rows of x and
// fewer in a tile) and linear_wgmma.cuh (more), of units that are found on the device (linear_group_tiles.cuh).
//   blocks   one wave of them, each working through whole units; the ring runs on from unit to unit
//   feed     a warpgroup (linear_group_feed.cuh), since rows of x lie wherever their tokens are
//   sums     as matrix_order.h: k ascending, segments each from +0, added in order in registers; a row of x has no part in
//            another's sums, so that what a tile's other rows are changes no bits
//   roof     packed weights of the experts that have rows, at copy speed, or the matrix units
#pragma once

#include <utility>

#include "backends/cuda/ops/linear_group_feed.cuh"
#include "backends/cuda/ops/linear_stream.cuh"
#include "backends/cuda/ops/linear_wgmma.cuh"

namespace nibble::cuda {

template <WeightFormat F, int Tokens, Totals T>
using GroupShape = std::conditional_t<Tokens <= 32, StreamShape<F, Tokens, T, false, kGroupSpare>,
                                      WgmmaShape<F, Tokens, T, kGroupSpare>>;

// A segment's sums enter the totals.
template <int N>
__device__ __forceinline__ void fold_group(const GroupedParams& p, const GroupWork& w, int segment, const float (&sum)[N],
                                           float (&total)[N]) {
  if (p.weight.block == nullptr) {
#pragma unroll
    for (int i = 0; i < N; ++i) total[i] = num::add(total[i], sum[i]);
    return;
  }
  static_assert(kGroupRows == 128, "a unit has one scale");
  const float* const block = p.weight.block + w.expert * p.expert_bytes / static_cast<std::int64_t>(sizeof(float));
  const float scale = block[w.row * ((p.weight.cols + 127) / 128) + segment];
#pragma unroll
  for (int i = 0; i < N; ++i) total[i] = num::fma(sum[i], scale, total[i]);
}
// Totals of a warp's 16 weight rows.
template <int N>
__device__ __forceinline__ void finish_group(const GroupedParams& p, const GroupWork& w, int group, int warp, int lane,
                                             const float (&total)[N]) {
  const std::int64_t n0 = static_cast<std::int64_t>(w.row) * kGroupRows + group * kTileRows + warp * kUnitRows;
  if (n0 >= p.weight.padded_rows) return;
  const float* const alphas = p.weight.alpha + w.expert * p.expert_bytes / static_cast<std::int64_t>(sizeof(float));
  store_tile<false>(p, TileOut{alphas, p.y, static_cast<std::int32_t>(p.y_stride), static_cast<std::int32_t>(p.weight.rows),
                              static_cast<std::int32_t>(n0), p.y_bf16}, w.first, w.end, lane, total);
}

template <WeightFormat F, class S>
class GroupStreamConsumer : StreamChain<F, S> {
  using Chain = StreamChain<F, S>;
  using Chain::group_, Chain::lane_, Chain::ring_, Chain::sum_, Chain::tile, Chain::warp_;

 public:
  __device__ __forceinline__ GroupStreamConsumer(const GroupedParams& p, const WgmmaRing& ring, int team)
      : Chain(ring, team), p_(p) {}

  __device__ __forceinline__ void run(const GroupSchedule<S::kTokens>& schedule) {
    GroupWork w;
    for (int i = 0; schedule.at(i, w); ++i) {
      clear(total_);
      for (int k = 0, segment = 0; k < p_.k_tiles; ++segment) {
        clear(sum_);
        for (const int until = min(k + p_.segment_tiles, p_.k_tiles); k < until;) {
          const int deep = min(S::kDeep, until - k);
          stage(deep);
          k += deep;
        }
        fold_group(p_, w, segment, sum_, total_);
      }
      finish_group(p_, w, group_, warp_, lane_, total_);
    }
  }

 private:
  __device__ __forceinline__ void stage(int deep) {
    const int stage = ring_.stage;
    ring_.full().wait(ring_.parity);
    if (deep == S::kDeep) {
#pragma unroll
      for (int t = 0; t < S::kDeep; ++t) tile(stage, t);
    } else {
      for (int t = 0; t < deep; ++t) tile(stage, t);
    }
    ring_.empty(stage).arrive();
    ring_.next();
  }

  const GroupedParams& p_;
  float total_[Chain::kSums];
};

template <WeightFormat F, class S, Totals T>
class GroupWgmmaConsumer : WgmmaChain<F, S> {
  using Chain = WgmmaChain<F, S>;
  using Chain::group_, Chain::lane_, Chain::run_of_k, Chain::sum_, Chain::warp_;

 public:
  __device__ __forceinline__ GroupWgmmaConsumer(const GroupedParams& p, const WgmmaRing& ring, int team)
      : Chain(ring, team), p_(p) {}

  __device__ __forceinline__ void run(const GroupSchedule<S::kTokens>& schedule) {
    GroupWork w;
    for (int i = 0; schedule.at(i, w); ++i) {
      if constexpr (T == Totals::none) {
        clear(sum_);
        run_of_k(p_.k_tiles);
        finish_group(p_, w, group_, warp_, lane_, sum_);
      } else {
        clear(total_);
        for (int k = 0, segment = 0; k < p_.k_tiles; ++segment) {
          const int tiles = min(p_.segment_tiles, p_.k_tiles - k);
          clear(sum_);
          run_of_k(tiles);
          k += tiles;
          fold_group(p_, w, segment, sum_, total_);
        }
        finish_group(p_, w, group_, warp_, lane_, total_);
      }
    }
  }

 private:
  const GroupedParams& p_;
  float total_[T == Totals::none ? 4 : Chain::kSums];
};

template <WeightFormat F, int Tokens, Totals T>
__global__ void __launch_bounds__(GroupShape<F, Tokens, T>::kThreads, GroupShape<F, Tokens, T>::kBlocks)
    linear_group(const __grid_constant__ GroupedParams p) {
#if defined(NIBBLE_SM90A)
  using S = GroupShape<F, Tokens, T>;
  using Consumer = std::conditional_t<Tokens <= 32, GroupStreamConsumer<F, S>, GroupWgmmaConsumer<F, S, T>>;
  constexpr int kConsumers = S::kGroups * 128;
  static_assert(S::kThreads == kConsumers + kFeedThreads && sizeof(GroupSchedule<Tokens>) <= kGroupSpare);
  // What all threads have together is what they were launched with.
  constexpr int kFeedRegisters = S::kBlocks == 2 ? 48 : 56, kConsumerRegisters = S::kBlocks == 2 ? 96 : 224;
  extern __shared__ std::uint8_t raw[];
  __shared__ GroupSchedule<Tokens> schedule;
  std::uint32_t start = (shared_address(raw) + 1023u) & ~1023u;
  asm volatile("" : "+r"(start));  // kept, not computed again in every step
  const WgmmaRing ring{start, start + S::kStages * S::kStageBytes, S::kStages};
  if (threadIdx.x < S::kStages) {
    Barrier{ring.barriers + threadIdx.x * 8}.init(kFullArrivals);
    ring.empty(static_cast<int>(threadIdx.x)).init(kConsumers);
    fence_barriers();
  }
  schedule.template plan<S::kThreads>(p);
  __syncthreads();
  const int team = static_cast<int>(threadIdx.x) / 128;
  if (team == S::kGroups) {
    give_registers<kFeedRegisters>();
    GroupFeed<S, (Tokens > 32)>(p, ring).run(schedule);
  } else {
    take_registers<kConsumerRegisters>();
    Consumer(p, ring, team).run(schedule);
  }
#endif
}

template <WeightFormat F, int Tile>
cudaError_t start_group_tile(const Launch& to, const GroupedParams& p, std::int64_t units) {
  constexpr GroupedTile kTile = kGroupedTiles[Tile];
  using S = GroupShape<F, kTile.tokens, kTile.totals>;
  const auto kernel = linear_group<F, kTile.tokens, kTile.totals>;
  const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  if (e != cudaSuccess) return e;
  const std::int64_t most = std::int64_t{to.multiprocessors} * S::kBlocks, blocks = units < most ? units : most;
  kernel<<<static_cast<unsigned>(blocks), S::kThreads, static_cast<unsigned>(S::kSharedBytes), to.stream>>>(p);
  return cudaGetLastError();
}
template <WeightFormat F>
cudaError_t start_group(const Launch& to, int tile, const GroupedParams& p, std::int64_t units) {
  cudaError_t e = cudaErrorInvalidValue;
  [&]<int... Tile>(std::integer_sequence<int, Tile...>) {
    ((tile == Tile ? (e = start_group_tile<F, Tile>(to, p, units), true) : false) || ...);
  }(std::make_integer_sequence<int, kGroupedTileCount>());
  return e;
}

}  // namespace nibble::cuda
