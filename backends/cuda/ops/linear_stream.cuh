// linear_stream.cuh: y = x w^T for few rows (32 at most) on sm_90: packed weights once, at the speed they come.
//   block     128 weight rows: eight chains of 16 rows, each a pair of warps that take turns at stages of the ring
//             (linear_ring.cuh), or one warp (32 rows of x, or totals); one warp more brings the stages
//   turn      a warp decodes its stage into fragments, waits for the sums that its partner leaves in shared memory,
//             runs the stage's products (mma.sync) and hands the sums on: decoding overlaps the chain of products,
//             whose order is that of matrix_order.h, and shapes with few rows still give a scheduler four warps
//   sums      a chain's k ascending in one accumulator; segments each from +0, added in order: by the block that
//             comes last where a unit is a segment (split), else in the chain (Totals::registers)
//   start     weights are on their way before the launch before this one has ended (launch_early.h)
//   blocks    one or two on each multiprocessor; whole units first, then each block's equal share of what is left, cut
//             anywhere (linear_schedule.cuh)
//   roof      packed weights at copy speed; about 80 instructions for 16 x 64 of NVFP4
#pragma once

#include <utility>

#include "backends/cuda/device/weight_plain.cuh"
#include "backends/cuda/ops/linear_leave.cuh"
#include "backends/cuda/ops/linear_ring.cuh"

namespace nibble::cuda {

// Spare: bytes of shared memory that a kernel takes for itself; such ones decode between products, two blocks beside
// each other whatever the totals.
template <WeightFormat F, int Tokens, Totals T, bool Relays, int Spare = 0>
struct StreamShape {
  static constexpr int kTokens = Tokens, kGroups = 2, kRows = kGroups * kTileRows;
  // Totals beside the sums cost more to hand over than it gains: one warp a chain then, which decodes between its
  // products, and two blocks on a multiprocessor where registers allow.
  static_assert(T == Totals::none || !Relays);
  static constexpr int kRelays = Relays ? 2 : 1, kConsumers = kRelays * kGroups * 128;
  static constexpr int kBlocks = kRelays == 1 && (T == Totals::none || Spare > 0) ? 2 : 1;
  static constexpr int kThreads = kConsumers + 128;
  // As many k tiles as there are registers for: 16 a tile.
  static constexpr int kMost = F == WeightFormat::bf16 ? (Tokens == 32 ? 1 : 2) : Tokens == 32 ? 2 : Tokens == 16 ? 3 : 4;
  static constexpr int kDeep = T == Totals::none ? kMost : Spare > 0 && F != WeightFormat::nvfp4 ? 1 : 2;
  static constexpr int kTokenBytes = Tokens * kTileCols * 2;
  static constexpr int kUnitStride = code_stride(F, ScaleCode::e5m3), kTileBytes = 4 * kUnitStride;
  static constexpr int kInputBytes = kDeep * kTokenBytes;
  static constexpr int kWeightBytes = kDeep * kGroups * kTileBytes;
  static constexpr int kStageBytes = kInputBytes + kWeightBytes;
  // Sums on their way from warp to warp, for each chain.
  static constexpr int kSums = Tokens / 2;
  static constexpr int kHandBytes = kRelays == 1 ? 0 : kSums * 128;
  static constexpr int kChains = kGroups * 4;
  static constexpr int kRoom = (kBlocks == 2 ? 110 : 222) * 1024 - kChains * (kHandBytes + 16) - Spare;
  static constexpr int kFit = kRoom / (kStageBytes + 16);
  static constexpr int kStages = kFit < 16 ? kFit : 16;
  static constexpr int kSharedBytes = 1024 + kStages * (kStageBytes + 16) + kChains * (kHandBytes + 16);
  static constexpr int kSlotBytes = kRows * Tokens * 4;
  static constexpr int kProducerRegisters = kRelays == 2 ? 32 : kBlocks == 2 ? 48 : 40,
                       kConsumerRegisters = kRelays == 2 ? 112 : kBlocks == 2 ? 96 : 232;
  static_assert(kStages >= 3 && kSharedBytes + Spare <= (kBlocks == 2 ? 113 : 227) * 1024);
  static_assert(kSlotBytes * kBlocks <= kAreaPerProcessor);
  static_assert(registers_suffice(kThreads, kBlocks, kProducerRegisters, kConsumerRegisters));
};

// A warp's products of its 16 weight rows, k tile for k tile. `team`: 128 threads that have a row tile of 64, the
// team % kGroups-th.
template <WeightFormat F, class S>
class StreamChain {
 protected:
  static constexpr int kSums = S::kSums;

  __device__ __forceinline__ StreamChain(const WgmmaRing& ring, int team)
      : ring_(ring), thread_(static_cast<int>(threadIdx.x) % 128), lane_(thread_ % 32), warp_(thread_ / 32),
        group_(team % S::kGroups) {
    const std::uint32_t weights = ring.start + S::kStages * S::kInputBytes;
    const auto chunk = static_cast<std::uint32_t>((lane_ / 8 ^ lane_ % 8) * 16);
    tokens_[0] = ring.start + static_cast<std::uint32_t>(lane_ % 8 * 128) + chunk;
    tokens_[1] = tokens_[0] - chunk + (chunk ^ 64u);
    const std::uint32_t unit =
        weights + static_cast<std::uint32_t>(group_ * S::kDeep * S::kTileBytes + warp_ * S::kUnitStride);
    codes_ = unit + static_cast<std::uint32_t>(lane_ * 16);
    scales_ = unit + static_cast<std::uint32_t>(unit_bytes(F) + lane_ / 4 * 8);
    asm volatile("" : "+r"(codes_), "+r"(scales_), "+r"(tokens_[0]), "+r"(tokens_[1]));  // kept, not computed again
  }

  __device__ __forceinline__ SharedUnit<F> unit_of(int stage, int t) const {
    const auto at = static_cast<std::uint32_t>(stage * S::kWeightBytes + t * S::kTileBytes);
    return SharedUnit<F>(codes_ + at, scales_ + at);
  }
  __device__ __forceinline__ void tile(int stage, int t) {
    std::uint32_t fragments[4][4];
    const SharedUnit<F> unit = unit_of(stage, t);
#pragma unroll
    for (int s = 0; s < 4; ++s) unit.fragment(s, fragments[s]);
    products(stage, t, fragments);
  }
  __device__ __forceinline__ void products(int stage, int t, const std::uint32_t (&a)[4][4]) {
    const auto at = static_cast<std::uint32_t>(stage * S::kInputBytes + t * S::kTokenBytes);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint4 b[S::kTokens / 8];
#pragma unroll
      for (int j = 0; j < S::kTokens / 8; ++j) {
        b[j] = load_matrices(tokens_[h] + at + static_cast<std::uint32_t>(j * 1024));
      }
#pragma unroll
      for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int j = 0; j < S::kTokens / 8; ++j) {
          mma_m16n8k16_bf16<kMmaPath>(*reinterpret_cast<float(*)[4]>(sum_ + 4 * j), a[2 * h + s],
                                      s == 0 ? b[j].x : b[j].z, s == 0 ? b[j].y : b[j].w);
        }
      }
    }
  }

  WgmmaRing ring_;
  int thread_, lane_, warp_, group_;
  std::uint32_t codes_, scales_, tokens_[2];  // of this lane in the first stage; x: either half of a tile's columns
  float sum_[kSums];
};

template <WeightFormat F, int Tokens, Totals T, bool Relays, bool SwiGlu>
class StreamConsumer : StreamChain<F, StreamShape<F, Tokens, T, Relays>> {
  using S = StreamShape<F, Tokens, T, Relays>;
  using Chain = StreamChain<F, S>;
  using Chain::group_, Chain::kSums, Chain::lane_, Chain::products, Chain::ring_, Chain::sum_, Chain::thread_, Chain::tile,
      Chain::unit_of, Chain::warp_;
  using Leave = LeftSums<S::kSlotBytes, S::kGroups>;
  static constexpr bool kTotals = T == Totals::registers;
  static constexpr bool kAhead = S::kBlocks == 1;  // a stage is decoded before its products, as registers allow

 public:
  __device__ __forceinline__ StreamConsumer(const WgmmaParams& p, const WgmmaRing& ring, std::uint32_t hands,
                                            unsigned* arrived)
      : Chain(ring, static_cast<int>(threadIdx.x) / 128), p_(p), l_(p.linear),
        relay_(static_cast<int>(threadIdx.x) / 128 / S::kGroups),
        left_(p, relay_ * S::kGroups + group_, thread_, arrived) {
    const auto chain = static_cast<std::uint32_t>(group_ * 4 + warp_);
    hand_ = hands + chain * S::kHandBytes + static_cast<std::uint32_t>(lane_) * 16;
    given_ = hands + S::kChains * S::kHandBytes + chain * 16;
  }

  __device__ __forceinline__ void run(const StreamSchedule& schedule) {
    if (relay_ == 1) {
      given(0).arrive();
      ring_.next();
    }
    int first = relay_;  // of a run's stages, one's own
    WgmmaWork w;
    for (int i = 0; schedule.at(i, w); ++i) {
      for (int k = w.first; k < w.last;) {  // runs: a unit's segments, where those are folded here
        const int until = kTotals ? min(w.last, (k / l_.segment_tiles + 1) * l_.segment_tiles) : w.last;
        const int stages = (until - k + S::kDeep - 1) / S::kDeep;
        for (int j = first; j < stages; j += S::kRelays) {
          const int at = k + j * S::kDeep;
          stage(w, at, min(S::kDeep, until - at), until);
          ring_.skip(S::kRelays);
        }
        first = (first + stages) % S::kRelays;
        k = until;
      }
    }
  }

 private:
  // One's own stage: k tiles [k, k + deep).
  __device__ __forceinline__ void stage(const WgmmaWork& w, int k, int deep, int until) {
    const int stage = ring_.stage;
    ring_.full().wait(ring_.parity);
    if (kAhead && deep == S::kDeep) {
      std::uint32_t fragments[S::kDeep][4][4];
      const auto units = units_of(stage, std::make_integer_sequence<int, S::kDeep>());  // all on their way at once
#pragma unroll
      for (int t = 0; t < S::kDeep; ++t) {
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          units.of[t].fragment(s, fragments[t][s]);
          computed(fragments[t][s]);
        }
      }
      take(w, k, deep);
#pragma unroll
      for (int t = 0; t < S::kDeep; ++t) products(stage, t, fragments[t]);
    } else {
      take(w, k, deep);
      if (!kAhead && deep == S::kDeep) {
#pragma unroll
        for (int t = 0; t < S::kDeep; ++t) tile(stage, t);
      } else {
        for (int t = 0; t < deep; ++t) tile(stage, t);
      }
    }
    ring_.empty(stage).arrive();
    k += deep;
    if (kTotals && k == until && (k == l_.k_tiles || k % l_.segment_tiles == 0)) fold(w, k);
    if (k < w.last) return give();
    if (w.leave) return left_.template leave<kTotals>(sum_, total_, p_.split);
    if constexpr (!kTotals) {
      if (p_.split && !left_.combine(w.row, w.segment, l_.segments, sum_)) return;
    }
    const std::int64_t n0 =
        static_cast<std::int64_t>(w.row) * S::kRows + group_ * kTileRows + warp_ * kUnitRows;
    if (n0 >= l_.weight.padded_rows) return;
    const int rows = row_count(*l_.step, l_.rows);
    if constexpr (SwiGlu) {
      store_swiglu(l_, n0, 0, rows, lane_, sum_);
    } else {
      store_tile(l_, n0, 0, rows, lane_, sum_);
    }
  }

  // Keeps the values' computation before the wait that follows, where it overlaps the partner's products: a store that
  // never happens, which only the card knows. Else ptxas moves half of it behind.
  __device__ __forceinline__ void computed(const std::uint32_t (&v)[4]) const {
    asm volatile(
        "{ .reg .pred never; setp.lt.s32 never, %0, 0; @never st.shared.v4.u32 [%1], {%2, %3, %4, %5}; }" ::"r"(l_.k_tiles),
        "r"(hand_), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
        : "memory");
  }
  struct Units {
    SharedUnit<F> of[S::kDeep];
  };
  template <int... Tile>
  __device__ __forceinline__ Units units_of(int stage, std::integer_sequence<int, Tile...>) const {
    return {{unit_of(stage, Tile)...}};
  }
  // The sums so far: none, those of another block, or the partner's. The partner's word is waited for at a unit's
  // first stage too: it is that a unit's last sums were taken, so that the memory and the barrier are free.
  __device__ __forceinline__ void take(const WgmmaWork& w, int k, int deep) {
    if constexpr (S::kRelays > 1) {
      given(relay_).wait(given_parity_);
      given_parity_ ^= 1;
    }
    if (k == w.first) {
      clear(sum_);
      if constexpr (kTotals) clear(total_);
      if (w.enter) left_.template enter<kTotals>(sum_, total_, p_.split);
    } else if constexpr (S::kRelays > 1) {
      from_shared(hand_, sum_);
    }
    if (S::kRelays > 1 && k + deep == w.last) given(1 - relay_).arrive();
  }
  __device__ __forceinline__ void give() const {
    if constexpr (S::kRelays == 1) return;
    to_shared(hand_, sum_);
    given(1 - relay_).arrive();
  }
  __device__ __forceinline__ Barrier given(int relay) const { return {given_ + static_cast<std::uint32_t>(relay) * 8}; }
  // The segment that ends before tile k enters the total; after the last one that is in sum_.
  __device__ __forceinline__ void fold(const WgmmaWork& w, int k) {
    if (l_.weight.block == nullptr) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) total_[i] = num::add(total_[i], sum_[i]);
    } else {
      const float scale = l_.weight.block[w.row * ((l_.weight.cols + 127) / 128) + (k - 1) / l_.segment_tiles];
#pragma unroll
      for (int i = 0; i < kSums; ++i) total_[i] = num::fma(sum_[i], scale, total_[i]);
    }
    const bool last = k == l_.k_tiles;
#pragma unroll
    for (int i = 0; i < kSums; ++i) sum_[i] = last ? total_[i] : 0.0f;
  }

  const WgmmaParams& p_;
  const LinearParams& l_;
  int relay_;
  std::uint32_t hand_, given_;    // sums on their way; barriers, one for each warp of the pair
  std::uint32_t given_parity_ = 0;
  Leave left_;
  float total_[kTotals ? kSums : 4];
};

// SwiGlu: the weight is of gate and up (WeightImage::gate_up).
template <WeightFormat F, int Tokens, Totals T, bool Relays, bool SwiGlu>
__global__ void __launch_bounds__(StreamShape<F, Tokens, T, Relays>::kThreads, StreamShape<F, Tokens, T, Relays>::kBlocks)
    linear_stream(const __grid_constant__ CUtensorMap map, const __grid_constant__ WgmmaParams p,
                  const __grid_constant__ StreamPlan plan) {
#if defined(NIBBLE_SM90A)
  using S = StreamShape<F, Tokens, T, Relays>;
  extern __shared__ std::uint8_t raw[];
  __shared__ unsigned arrived[S::kRelays * S::kGroups];
  __shared__ StreamSchedule schedule;  // not in registers: it is needed rarely
  const std::uint32_t start = (shared_address(raw) + 1023u) & ~1023u;
  const std::uint32_t hands = start + S::kStages * S::kStageBytes;
  WgmmaRing ring{start, hands + S::kChains * (S::kHandBytes + 16), S::kStages};
  if (threadIdx.x < S::kStages) {
    Barrier{ring.barriers + threadIdx.x * 8}.init(1);
    ring.empty(static_cast<int>(threadIdx.x)).init(S::kGroups * 128);
  } else if (threadIdx.x >= 32 && threadIdx.x < 32 + S::kChains * 2) {
    Barrier{hands + S::kChains * S::kHandBytes + (threadIdx.x - 32) * 8}.init(32);
  }
  if (threadIdx.x == 64) schedule.plan(plan, p, static_cast<int>(gridDim.x));
  fence_barriers();
  __syncthreads();
  let_next_launch_begin();
  if (threadIdx.x >= S::kConsumers) {
    give_registers<S::kProducerRegisters>();
    if (threadIdx.x != S::kConsumers) return;
    constexpr bool kSegments = T == Totals::registers;
    WgmmaWork w;
    bool more = schedule.at(0, w);
    // Weights are nobody's results: they are asked for while the launch before still runs.
    const int announced = more ? announce_first<S>(p, w, kSegments, ring) : 0;
    wait_for_launches_before();
    if (row_count(*p.linear.step, p.linear.rows) <= 0) return drain<S>(map, p, w, kSegments, ring, announced);
    for (int i = 0; more; more = schedule.at(++i, w)) produce<S>(map, p, w, kSegments, ring, i == 0 ? announced : 0);
  } else {
    wait_for_launches_before();
    if (row_count(*p.linear.step, p.linear.rows) <= 0) return;
    take_registers<S::kConsumerRegisters>();
    StreamConsumer<F, Tokens, T, Relays, SwiGlu>(p, ring, hands, arrived).run(schedule);
  }
#endif
}

}  // namespace nibble::cuda
