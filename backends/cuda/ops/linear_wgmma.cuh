// linear_wgmma.cuh: y = x w^T on sm_90's wgmma, weights dequantised in registers, for many rows.
//   tile     128 weight rows x Tokens rows of x; a consumer warpgroup for each 64 weight rows, weights as the
//            register operand (exact in bf16), tokens from shared memory
//   stages   64 or 128 columns of K (linear_ring.cuh), brought by a thread of a further warpgroup
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

// Spare: bytes of shared memory that a kernel takes for itself.
template <WeightFormat F, int Tokens, Totals T, int Spare = 0>
struct WgmmaShape {
  static constexpr int kRows = 128, kTokens = Tokens, kGroups = kRows / kTileRows, kThreads = (kGroups + 1) * 128;
  static constexpr int kDeep = Tokens > 128 || F == WeightFormat::bf16 ? 1 : 2;  // as three stages fit
  // On a multiprocessor, at most.
  static constexpr int kBlocks = Tokens <= 64 && T == Totals::none ? 2 : 1;
  static constexpr int kRoom = (kBlocks == 2 ? 110 : 222) * 1024 - Spare;
  static constexpr int kTokenBytes = Tokens * kTileCols * 2;
  static constexpr int kUnitStride = code_stride(F, ScaleCode::e5m3), kTileBytes = 4 * kUnitStride;
  static constexpr int kInputBytes = kDeep * kTokenBytes;
  static constexpr int kWeightBytes = kDeep * kGroups * kTileBytes;
  static constexpr int kStageBytes = kInputBytes + kWeightBytes;
  static constexpr int kFit = kRoom / kStageBytes;
  static constexpr int kStages = kFit < 24 ? kFit : 24;
  static constexpr int kSharedBytes = 1024 + kStages * (kStageBytes + 16);
  static constexpr int kProducerRegisters = kBlocks == 1 ? 40 : 56, kConsumerRegisters = kBlocks == 1 ? 232 : 88;
  static constexpr int kSlotBytes = kRows * Tokens * 4;
  static_assert(kStages >= 3 && kSharedBytes + Spare <= (kBlocks == 2 ? 113 : 227) * 1024);
  static_assert(kSlotBytes * kBlocks <= kAreaPerProcessor);
  static_assert(registers_suffice(kThreads, kBlocks, kProducerRegisters, kConsumerRegisters));
  static_assert(T == Totals::none || kRows == 128);  // of 128 rows are the scales that enter with a segment
};

// A warpgroup's products of its 64 weight rows, stage for stage.
template <WeightFormat F, class S>
class WgmmaChain {
 protected:
  static constexpr int kSums = S::kTokens / 2;

  __device__ __forceinline__ WgmmaChain(const WgmmaRing& ring, int group)
      : ring_(ring), group_(group), thread_(static_cast<int>(threadIdx.x) % 128), lane_(thread_ % 32),
        warp_(thread_ / 32) {
    const std::uint32_t weights = ring.start + S::kStages * S::kInputBytes;
    const std::uint32_t unit =
        weights + static_cast<std::uint32_t>(group * S::kDeep * S::kTileBytes + warp_ * S::kUnitStride);
    codes_ = unit + static_cast<std::uint32_t>(lane_ * 16);
    scales_ = unit + static_cast<std::uint32_t>(unit_bytes(F) + lane_ / 4 * 8);
    token_tile_ = first_half(ring.start);
    asm volatile("" : "+r"(codes_), "+r"(scales_), "+r"(token_tile_));
  }

  // Fragments are made two steps ahead of their products, so that the matrix unit has work meanwhile. The loop is
  // never empty and nothing in it is conditional but waiting: else ptxas waits after each instruction.
  __device__ __forceinline__ void run_of_k(int tiles) {
    int held = -1;  // the stage before
    int part = 0;   // k tiles of the stage that were begun
    ring_.full().wait(ring_.parity);
    SharedUnit<F> unit = unit_of(ring_.stage, 0);
    unit.fragment(0, fragments_[0]);
    settle(fragments_[0]);
    unit.fragment(1, fragments_[1]);
    settle(fragments_[1]);
    do {
      const int stage = ring_.stage;
      const std::uint32_t tokens =
          token_tile_ + static_cast<std::uint32_t>(stage * (S::kInputBytes / 16) + part * (S::kTokenBytes / 16));
      step<0>(tokens);
      unit.fragment(2, fragments_[2]);
      settle(fragments_[2]);
      step<1>(tokens);
      if (held >= 0) release(held);
      unit.fragment(3, fragments_[3]);
      settle(fragments_[3]);
      step<2>(tokens);
      const bool more = --tiles > 0, ends = S::kDeep == 1 || part == S::kDeep - 1 || !more;
      part = ends ? 0 : part + 1;
      if (ends) ring_.next();
      if (ends && more) ring_.full().wait(ring_.parity);
      unit = unit_of(more ? ring_.stage : stage, part);
      unit.fragment(0, fragments_[0]);
      settle(fragments_[0]);
      step<3>(tokens);
      unit.fragment(1, fragments_[1]);
      settle(fragments_[1]);
      held = ends ? stage : -1;
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
    wgmma_bf16<S::kTokens>(sum_, fragments_[Step], swizzled_tile(tokens + Step * kStepOfK));
    wgmma_commit();
    wgmma_wait<2>();
  }
  __device__ __forceinline__ SharedUnit<F> unit_of(int stage, int part) const {
    const auto at = static_cast<std::uint32_t>(stage * S::kWeightBytes + part * S::kTileBytes);
    return SharedUnit<F>(codes_ + at, scales_ + at);
  }

  WgmmaRing ring_;
  int group_, thread_, lane_, warp_;
  std::uint32_t codes_, scales_, token_tile_;  // of this lane in the first stage; low half of a descriptor
  float sum_[kSums];
  std::uint32_t fragments_[4][4];  // of four steps
};

template <WeightFormat F, int Tokens, Totals T, bool SwiGlu>
class WgmmaConsumer : WgmmaChain<F, WgmmaShape<F, Tokens, T>> {
  using S = WgmmaShape<F, Tokens, T>;
  using Chain = WgmmaChain<F, S>;
  using Chain::kSums, Chain::group_, Chain::lane_, Chain::run_of_k, Chain::sum_, Chain::thread_, Chain::warp_;
  static constexpr bool kRegisters = T == Totals::registers, kMemory = T == Totals::memory;

 public:
  __device__ __forceinline__ WgmmaConsumer(const WgmmaParams& p, const WgmmaRing& ring, int group, unsigned* arrived)
      : Chain(ring, group), l_(p.linear), left_(p, group, thread_, arrived) {}

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
        static_cast<std::int64_t>(w.row) * S::kRows + group_ * kTileRows + warp_ * kUnitRows;
    if (n0 >= l_.weight.padded_rows) return;
    const std::int64_t token0 = static_cast<std::int64_t>(w.token) * Tokens;
    if constexpr (SwiGlu) {
      store_swiglu(l_, n0, token0, rows, lane_, sum_);
    } else {
      store_tile(l_, n0, token0, rows, lane_, sum_);
    }
  }

  const LinearParams& l_;
  LeftSums<S::kSlotBytes, S::kGroups> left_;
  float total_[kSums];  // Totals::registers
};

// SwiGlu: the weight is of gate and up (WeightImage::gate_up).
template <WeightFormat F, int Tokens, Totals T, bool SwiGlu>
__global__ void __launch_bounds__(WgmmaShape<F, Tokens, T>::kThreads,
                                  WgmmaShape<F, Tokens, T>::kBlocks)
    linear_wgmma(const __grid_constant__ CUtensorMap map, const __grid_constant__ WgmmaParams p) {
#if defined(NIBBLE_SM90A)
  using S = WgmmaShape<F, Tokens, T>;
  extern __shared__ std::uint8_t raw[];
  __shared__ unsigned arrived[S::kGroups];
  __shared__ WgmmaSchedule schedule;  // not in registers: it is needed rarely
  std::uint32_t start = (shared_address(raw) + 1023u) & ~1023u;
  asm volatile("" : "+r"(start));  // kept, not computed again in every step
  WgmmaRing ring{start, start + S::kStages * S::kStageBytes, S::kStages};
  let_next_launch_begin();
  wait_for_launches_before();
  const int rows = row_count(*p.linear.step, p.linear.rows);
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::kStages; ++s) {
      Barrier{ring.barriers + static_cast<std::uint32_t>(s) * 8}.init(1);
      ring.empty(s).init(S::kGroups * 128);
    }
    fence_barriers();
    schedule.plan(p, rows, Tokens, S::kRows, static_cast<int>(gridDim.x));
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;
  if (group < 0) {
    give_registers<S::kProducerRegisters>();
    if (threadIdx.x != 0) return;
    WgmmaWork w;
    for (int i = 0; schedule.at(i, w); ++i) produce<S>(map, p, w, T != Totals::none, ring);
  } else {
    take_registers<S::kConsumerRegisters>();
    WgmmaConsumer<F, Tokens, T, SwiGlu>(p, ring, group, arrived).run(schedule);
  }
#endif
}

}  // namespace nibble::cuda
