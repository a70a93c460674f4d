// linear_a8.cuh: y = x w^T of FP8 weights and FP8 rows (mode a8) on sm_90's FP8 wgmma, for any number of rows.
//   tile     128 weight rows x Tokens rows of x; a consumer warpgroup for each 64 weight rows, whose codes are the register
//            operand as they lie in the image (CodeOrder::k32); rows of x from shared memory
//   stages   128 columns of K: one chain of four instructions, since a sum keeps 14 bits
//   sums     as matrix_order.h: a chain from +0, added to the total in float32 (128x128 weights: fma with their scale).
//            Tokens in chunks of Chunk: with two buffers a chunk's products run while the one before is added up, with
//            one the other warpgroup's do
//   blocks   one wave, cut between chains where units are no multiple of the blocks (linear_schedule.cuh)
//   roof     the FP8 unit; few rows: codes at copy speed
#pragma once

#include "backends/cuda/device/weight_plain.cuh"
#include "backends/cuda/ops/linear_leave.cuh"
#include "backends/cuda/ops/linear_ring.cuh"

namespace nibble::cuda {

// linear.k_tiles counts chains, for the schedule; k_tiles those of 64 columns that the image has.
struct A8Params {
  WgmmaParams wgmma;
  int k_tiles;
};

template <int Tokens, int Chunk, int Buffers>
struct A8Shape {
  static constexpr int kRows = 128, kTokens = Tokens, kGroups = kRows / kTileRows, kThreads = (kGroups + 1) * 128;
  static constexpr int kChainCols = 2 * kTileCols, kDeep = 2;
  static constexpr int kTileBytes = 4 * unit_bytes(WeightFormat::fp8_e4m3);
  static constexpr int kInputBytes = Tokens * kChainCols, kWeightBytes = kGroups * kDeep * kTileBytes;
  static constexpr int kStageBytes = kInputBytes + kWeightBytes;
  static constexpr int kFit = 222 * 1024 / (kStageBytes + 16), kStages = kFit < 12 ? kFit : 12;
  static constexpr int kSharedBytes = 1024 + kStages * (kStageBytes + 16);
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  static constexpr int kSlotBytes = kRows * Tokens * 4;
  static_assert(Tokens % Chunk == 0 && Chunk % 8 == 0 && (Buffers == 1 || Buffers == 2));
  static_assert(kStages >= 3 && kSharedBytes <= 227 * 1024 && kSlotBytes <= kAreaPerProcessor);
  static_assert(registers_suffice(kThreads, 1, kProducerRegisters, kConsumerRegisters));
};

template <int Tokens, int Chunk, int Buffers>
class A8Consumer {
  using S = A8Shape<Tokens, Chunk, Buffers>;
  static constexpr int kChunks = Tokens / Chunk, kSums = Chunk / 2;

 public:
  __device__ __forceinline__ A8Consumer(const A8Params& p, const WgmmaRing& ring, int group, unsigned* arrived)
      : p_(p), l_(p.wgmma.linear), ring_(ring), group_(group), thread_(static_cast<int>(threadIdx.x) % 128),
        lane_(thread_ % 32), warp_(thread_ / 32), left_(p.wgmma, group, thread_, arrived) {
    codes_ = ring.start + S::kStages * S::kInputBytes +
             static_cast<std::uint32_t>(group * S::kDeep * S::kTileBytes + warp_ * unit_bytes(WeightFormat::fp8_e4m3) +
                                        lane_ * 16);
    token_tile_ = first_half(ring.start);
    asm volatile("" : "+r"(codes_), "+r"(token_tile_));  // kept, not computed again
#pragma unroll
    for (int b = 0; b < Buffers; ++b) clear(sum_[b]);
  }

  __device__ __forceinline__ void run(const WgmmaSchedule& schedule) {
    WgmmaWork w;
    for (int i = 0; schedule.at(i, w); ++i) {
#pragma unroll
      for (float& t : total_) t = 0.0f;
      if (w.enter) left_.template enter<false>(total_, total_, false);
      for (int chain = w.first; chain < w.last; ++chain) run_chain(w.row, chain);
      if (w.leave) {
        left_.template leave<false>(total_, total_, false);
      } else {
        finish_tile(w, schedule.rows());
      }
    }
  }

 private:
  __device__ __forceinline__ void run_chain(int row, int chain) {
    const std::uint32_t tokens = token_tile_ + static_cast<std::uint32_t>(ring_.stage * (S::kInputBytes / 16));
    float scale = 0.0f;
    if (l_.weight.block != nullptr) scale = l_.weight.block[row * ((l_.weight.cols + 127) / 128) + chain];
    ring_.full().wait(ring_.parity);
    const std::uint32_t at = codes_ + static_cast<std::uint32_t>(ring_.stage * S::kWeightBytes);
    const bool whole = 2 * chain + 1 < p_.k_tiles;  // else half of it is there, and x beyond is zero
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const auto step = static_cast<std::uint32_t>(s / 2 * S::kTileBytes + s % 2 * 512);
      const uint4 v = s < 2 || whole ? shared_4(at + step) : make_uint4(0, 0, 0, 0);
      codes_of_[s][0] = v.x;
      codes_of_[s][1] = v.y;
      codes_of_[s][2] = v.z;
      codes_of_[s][3] = v.w;
      settle(codes_of_[s]);
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      start(c, tokens);
      if constexpr (Buffers == 1) {
        wgmma_wait<0>();
        if (c == kChunks - 1) release();
        fold(c, scale);
      } else if (c > 0) {
        wgmma_wait<1>();
        fold(c - 1, scale);
      }
    }
    if constexpr (Buffers == 2) {
      wgmma_wait<0>();
      release();
      fold(kChunks - 1, scale);
    }
  }
  __device__ __forceinline__ void release() {
    ring_.empty(ring_.stage).arrive();
    ring_.next();
  }
  __device__ __forceinline__ void start(int c, std::uint32_t tokens) {
    float(&sum)[kSums] = sum_[c % Buffers];
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const std::uint32_t b = tokens + static_cast<std::uint32_t>(c * (Chunk * S::kChainCols / 16)) + s * kStepOfK;
      wgmma_e4m3<Chunk>(sum, codes_of_[s], swizzled_tile(b), s > 0);
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void fold(int c, float scale) {
    float(&sum)[kSums] = sum_[c % Buffers];
    settle(sum);
    if (l_.weight.block == nullptr) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) total_[c * kSums + i] = num::add(total_[c * kSums + i], sum[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kSums; ++i) total_[c * kSums + i] = num::fma(sum[i], scale, total_[c * kSums + i]);
    }
    settle(sum);
  }
  // y = total * alpha * the row's scale.
  __device__ __forceinline__ void finish_tile(const WgmmaWork& w, int rows) {
    const std::int64_t n0 = static_cast<std::int64_t>(w.row) * S::kRows + group_ * kTileRows + warp_ * kUnitRows;
    if (n0 >= l_.weight.padded_rows) return;
    const TileOut out = out_of(l_, n0);
    const float alpha[2] = {out.alpha[out.n0 + lane_ / 4], out.alpha[out.n0 + lane_ / 4 + 8]};
    const auto* const scales = reinterpret_cast<const float*>(l_.x_scales);
    const std::int64_t token0 = static_cast<std::int64_t>(w.token) * Tokens;
#pragma unroll
    for (int j = 0; j < Tokens / 8; ++j) {
      float scale[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::int64_t token = min(token0 + j * 8 + lane_ % 4 * 2 + i, static_cast<std::int64_t>(rows) - 1);
        // Where it stands: registers are few.
        asm volatile("ld.global.f32 %0, [%1];" : "=f"(scale[i]) : "l"(scales + token * l_.scale_stride) : "memory");
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        total_[4 * j + i] = num::mul(num::mul(total_[4 * j + i], alpha[i / 2]), scale[i % 2]);
      }
    }
    constexpr float kScaled[2] = {1.0f, 1.0f};
    store_values<false>(l_, out, token0, rows, lane_, kScaled, total_);
  }

  const A8Params& p_;
  const LinearParams& l_;
  WgmmaRing ring_;
  int group_, thread_, lane_, warp_;
  LeftSums<S::kSlotBytes, S::kGroups> left_;
  std::uint32_t codes_, token_tile_;  // of this lane in the first stage; low half of a descriptor
  std::uint32_t codes_of_[4][4];      // of a chain's steps
  float sum_[Buffers][kSums], total_[Tokens / 2];
};

template <int Tokens, int Chunk, int Buffers>
__global__ void __launch_bounds__(A8Shape<Tokens, Chunk, Buffers>::kThreads, 1)
    linear_a8(const __grid_constant__ CUtensorMap map, const __grid_constant__ A8Params p) {
#if defined(NIBBLE_SM90A)
  using S = A8Shape<Tokens, Chunk, Buffers>;
  extern __shared__ std::uint8_t raw[];
  __shared__ unsigned arrived[S::kGroups];
  __shared__ WgmmaSchedule schedule;  // not in registers: it is needed rarely
  std::uint32_t start = (shared_address(raw) + 1023u) & ~1023u;
  asm volatile("" : "+r"(start));  // kept, not computed again in every step
  WgmmaRing ring{start, start + S::kStages * S::kStageBytes, S::kStages};
  const LinearParams& l = p.wgmma.linear;
  let_next_launch_begin();
  wait_for_launches_before();
  const int rows = row_count(*l.step, l.rows);
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::kStages; ++s) {
      Barrier{ring.barriers + static_cast<std::uint32_t>(s) * 8}.init(1);
      ring.empty(s).init(S::kGroups * 128);
    }
    fence_barriers();
    schedule.plan(p.wgmma, rows, Tokens, S::kRows, static_cast<int>(gridDim.x));
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;
  if (group < 0) {
    give_registers<S::kProducerRegisters>();
    if (threadIdx.x != 0) return;
    WgmmaWork w;
    for (int i = 0; schedule.at(i, w); ++i) {
#pragma unroll 1
      for (int chain = w.first; chain < w.last; ++chain) {
        const int deep = min(S::kDeep, p.k_tiles - 2 * chain);
        ring.empty(ring.stage).wait(ring.parity ^ 1);
        const Barrier full = ring.full();
        full.arrive_expecting(static_cast<std::uint32_t>(S::kInputBytes + deep * S::kGroups * S::kTileBytes));
        const auto stage = static_cast<std::uint32_t>(ring.stage);
        fill_weights<S>(l, w.row, p.k_tiles, 2 * chain, deep,
                        ring.start + S::kStages * S::kInputBytes + stage * S::kWeightBytes, full);
        copy_box(ring.start + stage * S::kInputBytes, &map, chain * S::kChainCols, w.token * Tokens, full);
        ring.next();
      }
    }
  } else {
    take_registers<S::kConsumerRegisters>();
    A8Consumer<Tokens, Chunk, Buffers>(p, ring, group, arrived).run(schedule);
  }
#endif
}

}  // namespace nibble::cuda
