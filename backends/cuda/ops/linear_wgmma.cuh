// linear_wgmma.cuh: y = x w^T on sm_90's wgmma, weights dequantised in registers, for any T.
//   tile     128 weight rows x Tokens rows of x; two consumer warpgroups of 64 weight rows each, weights as
//            the register operand (exact in bf16), tokens from shared memory
//   stages   64 columns of K: a box of x (swizzled) and four units of weights a warpgroup, brought by one
//            thread of a third warpgroup; a ring of kStages, full and empty barriers
//   sums     as matrix_order.h: k ascending in one accumulator, segments each from +0, added in order. The total
//            of the segments before is kept where Totals says
//   blocks   one wave of them, each working through units: tiles, or where tiles are few (split) segments of tiles
//            even     where units are no multiple of the blocks, the last one or two of each block are cut so that
//                     all end together: the block that begins a unit leaves its accumulators in `sums`, the next
//                     goes on with them, so that no sum changes. Beginnings come first: nobody waits for long
//            split    segments' sums are left in `sums` and added in order by the block that comes last
//   roof     T small: packed weights at copy speed; T large: the matrix units
#pragma once

#include <cuda.h>

#include "backends/cuda/device/sm90.cuh"
#include "backends/cuda/device/weight_plain.cuh"
#include "backends/cuda/ops/linear_schedule.cuh"
#include "backends/cuda/ops/linear_sums.cuh"

namespace nibble::cuda {

template <WeightFormat F, int Tokens, Totals T>
struct WgmmaShape {
  static constexpr bool kMma = Tokens <= 32;  // mma.sync, whose warps need not go together; the same sums
  // On a multiprocessor, at most.
  static constexpr int kBlocks = Tokens <= 16 || (Tokens <= 64 && T == Totals::none) ? 2 : 1;
  static constexpr int kRoom = (kBlocks == 2 ? 110 : 222) * 1024;
  static constexpr int kTokenBytes = Tokens * kTileCols * 2;
  static constexpr int kCodeBytes = 4 * unit_bytes(F);
  static constexpr int kScaleBytes = F == WeightFormat::nvfp4 ? 4 * kUnitScaleBytes : 0;
  // k tiles of a stage: fewer and larger copies where little is to do, three stages at least.
  static constexpr int kRoomForTiles = kRoom / (kTokenBytes + kGroups * (kCodeBytes + kScaleBytes));
  static constexpr int kDeep = !kMma ? 1 : kRoomForTiles >= 12 ? 4 : kRoomForTiles >= 6 ? 2 : 1;
  // In shared memory: x [stage][kDeep], then for each stage codes [group][kDeep], scales [group][kDeep].
  static constexpr int kInputBytes = kDeep * kTokenBytes;
  static constexpr int kWeightBytes = kDeep * kGroups * (kCodeBytes + kScaleBytes);
  static constexpr int kScalesAt = kDeep * kGroups * kCodeBytes;
  static constexpr int kStageBytes = kInputBytes + kWeightBytes;
  static constexpr int kFit = kRoom / kStageBytes;
  static constexpr int kStages = kFit < 24 ? kFit : 24;
  static constexpr int kSharedBytes = 1024 + kStages * (kStageBytes + 16);
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = kBlocks == 1 ? 232 : 96;
  static constexpr int kSlotBytes = kWgmmaRows * Tokens * 4;
  static_assert(kStages >= 3 && kSharedBytes <= (kBlocks == 2 ? 113 : 227) * 1024);
  static_assert(kSlotBytes * kBlocks <= kAreaPerProcessor);
};

// The ring, seen by one side.
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
};

template <WeightFormat F, int Tokens, Totals T>
__device__ __forceinline__ void wgmma_produce(const CUtensorMap& map, const WgmmaParams& p,
                                              const WgmmaSchedule& schedule, WgmmaRing ring) {
  using S = WgmmaShape<F, Tokens, T>;
  const LinearParams& l = p.linear;
  const int last_row_tile = static_cast<int>(l.weight.padded_rows / kTileRows) - 1;
  WgmmaWork w;
  for (int i = 0; schedule.at(i, w); ++i) {
#pragma unroll 1
    for (int k = w.first; k < w.last;) {
      int deep = min(S::kDeep, w.last - k);
      if constexpr (T != Totals::none) deep = min(deep, l.segment_tiles - k % l.segment_tiles);  // as accumulate()
      ring.empty(ring.stage).wait(ring.parity ^ 1);
      const Barrier full = ring.full();
      full.arrive_expecting(static_cast<std::uint32_t>(deep * (S::kStageBytes / S::kDeep)));
      const auto stage = static_cast<std::uint32_t>(ring.stage);
#pragma unroll
      for (int t = 0; t < S::kDeep; ++t) {
        if (t < deep) {
          copy_box(ring.start + stage * S::kInputBytes + t * S::kTokenBytes, &map, (k + t) * kTileCols,
                   w.token * Tokens, full);
        }
      }
      const std::uint32_t to = ring.start + S::kStages * S::kInputBytes + stage * S::kWeightBytes;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {  // past the weight's rows: the last tile again, whose sums nobody reads
        const int row_tile = min(w.row * kGroups + g, last_row_tile);
        const std::int64_t tile = static_cast<std::int64_t>(row_tile) * l.k_tiles + k;
        copy_bytes(to + g * S::kDeep * S::kCodeBytes, l.weight.codes + tile * S::kCodeBytes,
                   static_cast<std::uint32_t>(deep * S::kCodeBytes), full);
        if constexpr (S::kScaleBytes > 0) {
          copy_bytes(to + S::kScalesAt + g * S::kDeep * S::kScaleBytes, l.weight.scales + tile * S::kScaleBytes,
                     static_cast<std::uint32_t>(deep * S::kScaleBytes), full);
        }
      }
      ring.next();
      k += deep;
    }
  }
}

template <WeightFormat F, int Tokens, Totals T>
class WgmmaConsumer {
  using S = WgmmaShape<F, Tokens, T>;
  static constexpr int kSums = Tokens / 2;
  static constexpr bool kRegisters = T == Totals::registers, kMemory = T == Totals::memory;
  static constexpr std::size_t kGroupFloat4 = S::kSlotBytes / kGroups / 16;

 public:
  __device__ __forceinline__ WgmmaConsumer(const WgmmaParams& p, const WgmmaRing& ring, int group)
      : p_(p), l_(p.linear), ring_(ring), group_(group), thread_(static_cast<int>(threadIdx.x) % 128),
        lane_(thread_ % 32), warp_(thread_ / 32) {
    const std::uint32_t weights = ring.start + S::kStages * S::kInputBytes;
    codes_ = weights +
             static_cast<std::uint32_t>(group * S::kDeep * S::kCodeBytes + warp_ * unit_bytes(F) + lane_ * 16);
    scales_ = weights + static_cast<std::uint32_t>(S::kScalesAt + group * S::kDeep * S::kScaleBytes +
                                                   warp_ * kUnitScaleBytes + lane_ / 4 * 8);
    token_tile_ = first_half(ring.start);
    asm volatile("" : "+r"(codes_), "+r"(scales_), "+r"(token_tile_));
  }

  __device__ __forceinline__ void run(const WgmmaSchedule& schedule) {
    WgmmaWork w;
    for (int i = 0; schedule.at(i, w); ++i) {
      begin(w, schedule.split());
      accumulate(schedule, i, w.first, w.last);
      again(schedule, i, w);
      if (w.leave) {
        leave(schedule.split());
        continue;
      }
      if constexpr (T != Totals::memory) {
        if (schedule.split()) {
          if (combine(schedule.tile(w), w.segment)) finish_tile(w, schedule.rows());
          continue;
        }
      }
      fold(w, l_.k_tiles);
      finish_tile(w, schedule.rows());
    }
  }

 private:
  // What was asked for before: not kept while products run, when registers are few.
  __device__ __forceinline__ static void again(const WgmmaSchedule& schedule, int i, WgmmaWork& w) {
    asm volatile("" : "+r"(i));
    schedule.at(i, w);
  }
  __device__ __forceinline__ void accumulate(const WgmmaSchedule& schedule, int i, int k, int last) {
    while (true) {
      int tiles = last - k;
      if constexpr (T != Totals::none) tiles = min(tiles, l_.segment_tiles - k % l_.segment_tiles);
      k += tiles;
      if constexpr (S::kMma) {
        run_of_k_mma(tiles);
      } else {
        run_of_k(tiles);
      }
      if (T == Totals::none || schedule.split() || k == l_.k_tiles || k % l_.segment_tiles != 0) return;
      WgmmaWork w;
      again(schedule, i, w);
      fold(w, k);
      clear(sum_);
      if (k == last) return;
    }
  }
  // Fragments are made two steps ahead of their products, so that the matrix unit has work meanwhile. The loop is
  // never empty and nothing in it is conditional but waiting: else ptxas waits after each instruction.
  __device__ __forceinline__ void run_of_k(int tiles) {
    int held = -1;  // the stage before
    ring_.full().wait(ring_.parity);
    SharedUnit<F> unit = unit_of(ring_.stage);
    unit.fragment(0, fragments_[0]);
    settle(fragments_[0]);
    unit.fragment(1, fragments_[1]);
    settle(fragments_[1]);
    do {
      const int stage = ring_.stage;
      const std::uint32_t tokens = token_tile_ + static_cast<std::uint32_t>(stage) * (S::kTokenBytes / 16);
      step<0>(tokens);
      unit.fragment(2, fragments_[2]);
      settle(fragments_[2]);
      step<1>(tokens);
      if (held >= 0) release(held);
      unit.fragment(3, fragments_[3]);
      settle(fragments_[3]);
      step<2>(tokens);
      ring_.next();
      const bool more = --tiles > 0;
      if (more) ring_.full().wait(ring_.parity);
      unit = unit_of(more ? ring_.stage : stage);
      unit.fragment(0, fragments_[0]);
      settle(fragments_[0]);
      step<3>(tokens);
      unit.fragment(1, fragments_[1]);
      settle(fragments_[1]);
      held = stage;
    } while (tiles > 0);
    wgmma_wait<0>();
    settle(sum_);
    release(held);
  }
  // This lane has read what it needs of a stage. Each speaks for itself: racecheck does not follow a __syncwarp and one
  // lane's arrival.
  __device__ __forceinline__ void release(int stage) const { ring_.empty(stage).arrive(); }
  // Starts a step; those before the last two are done.
  template <int Step>
  __device__ __forceinline__ void step(std::uint32_t tokens) {
    wgmma_fence();
    wgmma_bf16<Tokens>(sum_, fragments_[Step], swizzled_tile(tokens + Step * kStepOfK));
    wgmma_commit();
    wgmma_wait<2>();
  }
  // The same order by mma.sync: each warp for itself, b from the same swizzled tiles.
  __device__ __forceinline__ void run_of_k_mma(int tiles) {
    do {
      ring_.full().wait(ring_.parity);
      const int stage = ring_.stage;
      if (tiles >= S::kDeep) {
#pragma unroll
        for (int t = 0; t < S::kDeep; ++t) mma_tile(stage, t);
      } else {
        for (int t = 0; t < tiles; ++t) mma_tile(stage, t);
      }
      release(stage);
      ring_.next();
      tiles -= S::kDeep;
    } while (tiles > 0);
  }
  __device__ __forceinline__ void mma_tile(int stage, int t) {
    const std::uint32_t at = static_cast<std::uint32_t>(stage) * S::kWeightBytes;
    const SharedUnit<F> unit(codes_ + at + static_cast<std::uint32_t>(t * S::kCodeBytes),
                             scales_ + at + static_cast<std::uint32_t>(t * S::kScaleBytes));
    const std::uint32_t tokens = ring_.start + static_cast<std::uint32_t>(stage * S::kInputBytes + t * S::kTokenBytes +
                                                                          lane_ % 8 * 128);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto chunk = static_cast<std::uint32_t>((4 * h + lane_ / 8) ^ lane_ % 8);
      uint4 b[Tokens / 8];
#pragma unroll
      for (int j = 0; j < Tokens / 8; ++j) {
        b[j] = load_matrices(tokens + static_cast<std::uint32_t>(j * 1024) + chunk * 16);
      }
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        std::uint32_t a[4];
        unit.fragment(2 * h + s, a);
#pragma unroll
        for (int j = 0; j < Tokens / 8; ++j) {
          mma_m16n8k16_bf16<kMmaPath>(*reinterpret_cast<float(*)[4]>(sum_ + 4 * j), a, s == 0 ? b[j].x : b[j].z,
                                      s == 0 ? b[j].y : b[j].w);
        }
      }
    }
  }
  __device__ __forceinline__ SharedUnit<F> unit_of(int stage) const {
    const std::uint32_t at = static_cast<std::uint32_t>(stage) * S::kWeightBytes;
    return SharedUnit<F>(codes_ + at, scales_ + at);
  }

  // Area 0: accumulators of a unit that goes on elsewhere; 1: totals of its segments; 2: totals of a block's own
  // tiles, in memory. A split has no totals and its sums in areas 1 and 2.
  __device__ __forceinline__ float4* slot(int area, int block) const {
    return reinterpret_cast<float4*>(p_.sums + kFlagBytes +
                                     static_cast<std::size_t>(area) * p_.multiprocessors * kAreaPerProcessor) +
           (static_cast<std::size_t>(block) * kGroups + static_cast<std::size_t>(group_)) * kGroupFloat4;
  }
  __device__ __forceinline__ unsigned* flag(int of) const {
    return reinterpret_cast<unsigned*>(p_.sums) + of * kGroups + group_;
  }

  __device__ __forceinline__ void begin(const WgmmaWork& w, bool split) {
    clear(sum_);
    if constexpr (kRegisters) clear(total_);
    if (!w.enter) return;
    const int from = static_cast<int>(blockIdx.x) - 1;
    if (thread_ == 0) {
      unsigned there = 0;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(flag(from)) : "memory");
      } while (there == 0);
      *flag(from) = 0;
    }
    group_sync(group_);
    load_sums(slot(0, from), sum_, thread_);
    if constexpr (kRegisters) {
      if (!split) load_sums(slot(1, from), total_, thread_);
    }
    settle(sum_);
  }
  __device__ __forceinline__ void leave(bool split) {
    const int block = static_cast<int>(blockIdx.x);
    store_sums(slot(0, block), sum_, thread_);
    if constexpr (kRegisters) {
      if (!split) store_sums(slot(1, block), total_, thread_);
    }
    __threadfence();
    group_sync(group_);
    if (thread_ == 0) {
      asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag(block)), "r"(1u) : "memory");
    }
  }

  template <int N>
  __device__ __forceinline__ static void clear(float (&v)[N]) {
#pragma unroll
    for (float& f : v) f = 0.0f;
    settle(v);
  }
  // The sum of the segment that ends before tile k enters the total; after the last one that is in sum_.
  __device__ __forceinline__ void fold(const WgmmaWork& w, int k) {
    const int segment = (k - 1) / l_.segment_tiles;
    if constexpr (kMemory) {
      fold_in_memory(w, segment, k == l_.k_tiles);
    } else if constexpr (kRegisters) {
      if (l_.weight.block == nullptr) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) total_[i] = num::add(total_[i], sum_[i]);
      } else {
        const std::int64_t across = (l_.weight.cols + 127) / 128;
        const float scale = l_.weight.block[w.row * across + segment];
#pragma unroll
        for (int i = 0; i < kSums; ++i) total_[i] = num::fma(sum_[i], scale, total_[i]);
      }
      if (k != l_.k_tiles) return;
#pragma unroll
      for (int i = 0; i < kSums; ++i) sum_[i] = total_[i];
    }
  }
  __device__ __forceinline__ void fold_in_memory(const WgmmaWork& w, int segment, bool last) {
    const int block = static_cast<int>(blockIdx.x);
    float4* const own = w.leave ? slot(1, block) : slot(2, block);
    // The block before left the totals of its segments.
    const bool taken_over = w.enter && segment == w.first / l_.segment_tiles;
    const float4* const before = taken_over ? slot(1, block - 1) : own;
    if (segment > 0) add_sums(before, sum_, thread_);
    if (!last) store_sums(own, sum_, thread_);
  }

  // Leaves the segment's sum; true for the block that came last, which has the total in sum_ then.
  __device__ __forceinline__ bool combine(int tile, int segment) {
    constexpr std::size_t kSegment = kGroupFloat4;
    float4* const sums = slot(1, 0) - static_cast<std::size_t>(group_) * kGroupFloat4 +
                         (static_cast<std::size_t>(tile) * kGroups + static_cast<std::size_t>(group_)) *
                             static_cast<std::size_t>(l_.segments) * kSegment;
    store_sums(sums + static_cast<std::size_t>(segment) * kSegment, sum_, thread_);
    __threadfence();
    group_sync(group_);
    if (thread_ == 0) arrived_[group_] = atomicAdd(flag(kCounters + tile), 1u);
    group_sync(group_);
    if (arrived_[group_] + 1 != static_cast<unsigned>(l_.segments)) return false;
    __threadfence();
    if (thread_ == 0) *flag(kCounters + tile) = 0;
    clear(sum_);
    for (int s = 0; s < l_.segments; ++s) add_sums(sums + static_cast<std::size_t>(s) * kSegment, sum_, thread_);
    return true;
  }

  __device__ __forceinline__ void finish_tile(const WgmmaWork& w, int rows) {
    const std::int64_t n0 =
        static_cast<std::int64_t>(w.row) * kWgmmaRows + group_ * kTileRows + warp_ * kUnitRows;
    if (n0 >= l_.weight.padded_rows) return;
    store_tile(l_, n0, static_cast<std::int64_t>(w.token) * Tokens, rows, lane_, sum_);
  }

  const WgmmaParams& p_;
  const LinearParams& l_;
  WgmmaRing ring_;
  int group_, thread_, lane_, warp_;
  std::uint32_t codes_, scales_, token_tile_;  // of this lane in the first stage; low half of a descriptor
  float sum_[kSums];
  float total_[kSums];  // Totals::registers
  std::uint32_t fragments_[4][4];  // of four steps

 public:
  unsigned* arrived_ = nullptr;  // shared, one a group
};

template <WeightFormat F, int Tokens, Totals T>
__global__ void __launch_bounds__(kWgmmaThreads, WgmmaShape<F, Tokens, T>::kBlocks)
    linear_wgmma(const __grid_constant__ CUtensorMap map, const __grid_constant__ WgmmaParams p) {
#if defined(NIBBLE_SM90A)
  using S = WgmmaShape<F, Tokens, T>;
  extern __shared__ std::uint8_t raw[];
  __shared__ unsigned arrived[kGroups];
  __shared__ WgmmaSchedule schedule;  // not in registers: it is needed rarely
  std::uint32_t start = (shared_address(raw) + 1023u) & ~1023u;
  asm volatile("" : "+r"(start));  // kept, not computed again in every step
  WgmmaRing ring{start, start + S::kStages * S::kStageBytes, S::kStages};
  const int rows = row_count(*p.linear.step, p.linear.rows);
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::kStages; ++s) {
      Barrier{ring.barriers + static_cast<std::uint32_t>(s) * 8}.init(1);
      ring.empty(s).init(kGroups * 128);
    }
    fence_barriers();
    schedule.plan(p, rows, Tokens, static_cast<int>(gridDim.x));
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;
  if (group < 0) {
    give_registers<S::kProducerRegisters>();
    if (threadIdx.x == 0) wgmma_produce<F, Tokens, T>(map, p, schedule, ring);
  } else {
    take_registers<S::kConsumerRegisters>();
    WgmmaConsumer<F, Tokens, T> consumer(p, ring, group);
    consumer.arrived_ = arrived;
    consumer.run(schedule);
  }
#endif
}

}  // namespace nibble::cuda
