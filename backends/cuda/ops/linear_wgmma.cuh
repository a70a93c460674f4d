// linear_wgmma.cuh: y = x w^T on sm_90's wgmma, weights dequantised in registers, for many rows.
//   tile     Rows weight rows x Tokens rows of x; a consumer warpgroup for each 64 weight rows, weights as the
//            register operand (exact in bf16), tokens from shared memory
//   stages   64 columns of K (linear_ring.cuh), brought by one or two warps of a further warpgroup
//   sums     as matrix_order.h: k ascending in one accumulator, segments each from +0, added in order. The total
//            of the segments before is kept where Totals says
//   blocks   one wave of them, each working through units: tiles, or where tiles are few (split) segments of tiles
//            even     where units are no multiple of the blocks, the last one or two of each block are cut so that
//                     all end together: the block that begins a unit leaves its accumulators in `sums`, the next
//                     goes on with them, so that no sum changes. Beginnings come first: nobody waits for long
//            split    segments' sums are left in `sums` and added in order by the block that comes last
//   roof     the matrix units
#pragma once

#include "backends/cuda/device/weight_plain.cuh"
#include "backends/cuda/ops/linear_leave.cuh"
#include "backends/cuda/ops/linear_ring.cuh"

namespace nibble::cuda {

template <WeightFormat F, int Rows, int Tokens, Totals T, int Producers>
struct WgmmaShape {
  static constexpr int kTokens = Tokens, kDeep = 1, kGroups = Rows / kTileRows, kThreads = (kGroups + 1) * 128;
  // On a multiprocessor, at most.
  static constexpr int kBlocks = kGroups == 2 && Tokens <= 64 && T == Totals::none ? 2 : 1;
  static constexpr int kRoom = (kBlocks == 2 ? 110 : 222) * 1024;
  static constexpr int kTokenBytes = Tokens * kTileCols * 2;
  static constexpr int kCodeBytes = 4 * unit_bytes(F);
  static constexpr int kScaleBytes = F == WeightFormat::nvfp4 ? 4 * kUnitScaleBytes : 0;
  static constexpr int kInputBytes = kTokenBytes;
  static constexpr int kWeightBytes = kGroups * (kCodeBytes + kScaleBytes);
  static constexpr int kScalesAt = kGroups * kCodeBytes;
  static constexpr int kStageBytes = kInputBytes + kWeightBytes;
  static constexpr int kFit = kRoom / kStageBytes;
  static constexpr int kStages = kFit < 24 ? kFit : 24;
  static constexpr int kSharedBytes = 1024 + kStages * (kStageBytes + 16);
  static constexpr int kProducerRegisters = kGroups == 4 ? 32 : kBlocks == 1 ? 40 : 48,
                       kConsumerRegisters = kGroups == 4 ? 112 : kBlocks == 1 ? 232 : 96;
  static constexpr int kSlotBytes = Rows * Tokens * 4;
  static_assert(kStages >= 3 && kSharedBytes <= (kBlocks == 2 ? 113 : 227) * 1024);
  static_assert(kSlotBytes * kBlocks <= kAreaPerProcessor);
  static_assert(T == Totals::none || Rows == 128);  // of 128 rows are the scales that enter with a segment
};

template <WeightFormat F, int Rows, int Tokens, Totals T, int Producers, bool SwiGlu>
class WgmmaConsumer {
  using S = WgmmaShape<F, Rows, Tokens, T, Producers>;
  static constexpr int kSums = Tokens / 2;
  static constexpr bool kRegisters = T == Totals::registers, kMemory = T == Totals::memory;

 public:
  __device__ __forceinline__ WgmmaConsumer(const WgmmaParams& p, const WgmmaRing& ring, int group, unsigned* arrived)
      : l_(p.linear), ring_(ring), group_(group), thread_(static_cast<int>(threadIdx.x) % 128),
        lane_(thread_ % 32), warp_(thread_ / 32), left_(p, group, thread_, arrived) {
    const std::uint32_t weights = ring.start + S::kStages * S::kInputBytes;
    codes_ = weights +
             static_cast<std::uint32_t>(group * S::kCodeBytes + warp_ * unit_bytes(F) + lane_ * 16);
    scales_ = weights + static_cast<std::uint32_t>(S::kScalesAt + group * S::kScaleBytes +
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
        left_.template leave<kRegisters>(sum_, total_, schedule.split());
        continue;
      }
      if constexpr (T != Totals::memory) {
        if (schedule.split()) {
          if (left_.combine(schedule.tile(w), w.segment, l_.segments, sum_)) finish_tile(w, schedule.rows());
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
      run_of_k(tiles);
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
  __device__ __forceinline__ SharedUnit<F> unit_of(int stage) const {
    const std::uint32_t at = static_cast<std::uint32_t>(stage) * S::kWeightBytes;
    return SharedUnit<F>(codes_ + at, scales_ + at);
  }

  __device__ __forceinline__ void begin(const WgmmaWork& w, bool split) {
    clear(sum_);
    if constexpr (kRegisters) clear(total_);
    if (!w.enter) return;
    left_.template enter<kRegisters>(sum_, total_, split);
    settle(sum_);
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
    float4* const own = w.leave ? left_.slot(1, block) : left_.slot(2, block);
    // The block before left the totals of its segments.
    const bool taken_over = w.enter && segment == w.first / l_.segment_tiles;
    const float4* const before = taken_over ? left_.slot(1, block - 1) : own;
    if (segment > 0) add_sums(before, sum_, thread_);
    if (!last) store_sums(own, sum_, thread_);
  }

  __device__ __forceinline__ void finish_tile(const WgmmaWork& w, int rows) {
    const std::int64_t n0 =
        static_cast<std::int64_t>(w.row) * Rows + group_ * kTileRows + warp_ * kUnitRows;
    if (n0 >= l_.weight.padded_rows) return;
    const std::int64_t token0 = static_cast<std::int64_t>(w.token) * Tokens;
    if constexpr (SwiGlu) {
      store_swiglu(l_, n0, token0, rows, lane_, sum_);
    } else {
      store_tile(l_, n0, token0, rows, lane_, sum_);
    }
  }

  const LinearParams& l_;
  WgmmaRing ring_;
  int group_, thread_, lane_, warp_;
  LeftSums<S::kSlotBytes, S::kGroups> left_;
  std::uint32_t codes_, scales_, token_tile_;  // of this lane in the first stage; low half of a descriptor
  float sum_[kSums];
  float total_[kSums];  // Totals::registers
  std::uint32_t fragments_[4][4];  // of four steps
};

// SwiGlu: the weight is of gate and up (WeightImage::gate_up).
template <WeightFormat F, int Rows, int Tokens, Totals T, int Producers, bool SwiGlu>
__global__ void __launch_bounds__(WgmmaShape<F, Rows, Tokens, T, Producers>::kThreads,
                                  WgmmaShape<F, Rows, Tokens, T, Producers>::kBlocks)
    linear_wgmma(const __grid_constant__ CUtensorMap map, const __grid_constant__ WgmmaParams p) {
#if defined(NIBBLE_SM90A)
  using S = WgmmaShape<F, Rows, Tokens, T, Producers>;
  extern __shared__ std::uint8_t raw[];
  __shared__ unsigned arrived[S::kGroups];
  __shared__ WgmmaSchedule schedule;  // not in registers: it is needed rarely
  std::uint32_t start = (shared_address(raw) + 1023u) & ~1023u;
  asm volatile("" : "+r"(start));  // kept, not computed again in every step
  WgmmaRing ring{start, start + S::kStages * S::kStageBytes, S::kStages};
  const int rows = row_count(*p.linear.step, p.linear.rows);
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::kStages; ++s) {
      Barrier{ring.barriers + static_cast<std::uint32_t>(s) * 8}.init(1);
      ring.empty(s).init(S::kGroups * 128);
    }
    fence_barriers();
    schedule.plan(p, rows, Tokens, Rows, static_cast<int>(gridDim.x));
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;
  if (group < 0) {
    give_registers<S::kProducerRegisters>();
    WgmmaWork w;
    if constexpr (Producers == 1) {
      if (threadIdx.x != 0) return;
      for (int i = 0; schedule.at(i, w); ++i) produce<S>(map, p.linear, w, false, ring);
    } else {
      if (threadIdx.x != 0 && threadIdx.x != 32) return;
      int ahead = static_cast<int>(threadIdx.x) / 32;
      ring.skip(ahead);
      for (int i = 0; schedule.at(i, w); ++i) produce_every_second<S>(map, p.linear, w, ahead, ring);
    }
  } else {
    take_registers<S::kConsumerRegisters>();
    WgmmaConsumer<F, Rows, Tokens, T, Producers, SwiGlu>(p, ring, group, arrived).run(schedule);
  }
#endif
}

}  // namespace nibble::cuda
