// linear_fp4.cuh: y = x w^T on the block-scaled FP4 unit, weight and activations NVFP4, for any T.
//   tile     Rows weight rows (the instruction's A) x Tokens rows of x (its B), cut among RowWarps x TokenWarps
//            warps, whose sums stay in registers
//   stages   128 columns of K: a box of x's codes (swizzle of 64 bytes) and the weight's units, brought by one thread
//            of a last warp; a ring of kStages, full and empty barriers. x's scales come for 512 or 1,024
//            columns at once (swizzle of 32 or 64 bytes) into one of two slots: the copy engine takes about four
//            clocks for each row of a box, however few bytes it has (docs/paper_estimates.md)
//   loads    of a step of 64 columns: a unit's codes are one 128-bit load of a lane, two units' scales one 32-bit load
//            (of lanes p = 0, 1 the first unit's, p = 2, 3 the second's), two columns of 8 tokens one ldmatrix.
//            x's scales of 32 tokens and 128 columns are one 64-bit load (lane p has those of column p of four)
//   sums     as linear_sm120.cu: a segment in one accumulator, segments added in order; Totals: there are several
//   tails    of K: boxes are zero beyond x's columns, units are zero beyond the weight's; of T and N: not stored
//   blocks   as many as fit; each takes tiles in turn, neighbours in T first, which share weights in L2
//   needs    sm_120a, or sm_90a, where the instruction is emulated
#pragma once

#include <cuda.h>

#include "backends/cuda/device/mma_fp4.cuh"
#include "backends/cuda/device/sm90.cuh"
#include "backends/cuda/device/weight_plain.cuh"
#include "backends/cuda/ops/linear_sums.cuh"

namespace nibble::cuda {

template <int Rows, int Tokens, int RowWarps, int TokenWarps, bool Totals, int Blocks>
struct Fp4Shape {
  static constexpr int kRows = Rows, kTokens = Tokens, kRowWarps = RowWarps, kBlocks = Blocks;
  static constexpr bool kTotals = Totals;
  static constexpr int kUnits = Rows / RowWarps / kUnitRows, kColumns = Tokens / TokenWarps / 8;  // of a warp
  static constexpr int kConsumers = RowWarps * TokenWarps;
  // A quarter of a multiprocessor has 512 registers for each lane of its warps: two of 232 and one of 40, or a third
  // each where warps of two blocks meet.
  static constexpr bool kGive = Blocks == 1;
  static constexpr int kThreads = 32 * (kConsumers + (kGive ? 4 : 1));
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  static constexpr int kGroups = Rows / kTileRows;
  static constexpr int kTileBytes = kTileRows * kTileCols / 2, kTileScaleBytes = kTileRows * kTileCols / 16;
  // Chunks of 16 bytes, for 256 columns each, in a row of a box of x's scales: four where there is room.
  static constexpr int kScaleChunks = Blocks == 1 && Tokens <= 128 ? 4 : 2, kScaleTiles = 4 * kScaleChunks;
  static constexpr int kTokenBytes = Tokens * 64, kTokenScaleBytes = Tokens * 16 * kScaleChunks;
  static constexpr int kCodeBytes = kGroups * 2 * kTileBytes, kScaleBytes = kGroups * 2 * kTileScaleBytes;
  static constexpr int kStageBytes = kTokenBytes + kCodeBytes + kScaleBytes;
  // Of 100 KiB a block has 99 at most, and 1 KiB of each is the system's.
  static constexpr int kRoom = (Blocks == 2 ? 48 : 98) * 1024;
  static constexpr int kStages = (kRoom - 2 * kTokenScaleBytes) / (kStageBytes + 16);
  static constexpr int kSharedBytes = 1024 + 2 * kTokenScaleBytes + kStages * (kStageBytes + 16);
  static_assert(kStages >= 3 && kUnits >= 1 && kColumns % 4 == 0 && kUnits <= 4 && Rows % kTileRows == 0);
  static_assert(Blocks * (kSharedBytes + 1024) <= 100 * 1024);
  static_assert(kTokenBytes % 512 == 0 && kTokenScaleBytes % 512 == 0, "where swizzles begin anew");
};

struct Fp4Tile {
  int row, token;
};

// The ring, seen by one side.
template <class S>
struct Fp4Ring {
  std::uint32_t start;  // scales of x [slot], codes of x [stage], the weight's codes and scales [stage], barriers
  int stage = 0, slot = 1;
  std::uint32_t parity = 0;
  __device__ __forceinline__ std::uint32_t token_scales() const {
    return start + static_cast<std::uint32_t>(slot * S::kTokenScaleBytes);
  }
  __device__ __forceinline__ std::uint32_t tokens() const {
    return start + static_cast<std::uint32_t>(2 * S::kTokenScaleBytes + stage * S::kTokenBytes);
  }
  __device__ __forceinline__ std::uint32_t codes() const {
    return start + static_cast<std::uint32_t>(2 * S::kTokenScaleBytes + S::kStages * S::kTokenBytes +
                                              stage * S::kCodeBytes);
  }
  __device__ __forceinline__ std::uint32_t scales() const {
    return start + static_cast<std::uint32_t>(2 * S::kTokenScaleBytes +
                                              S::kStages * (S::kTokenBytes + S::kCodeBytes) + stage * S::kScaleBytes);
  }
  __device__ __forceinline__ Barrier full(int of) const {
    return {start + static_cast<std::uint32_t>(2 * S::kTokenScaleBytes + S::kStages * S::kStageBytes + of * 8)};
  }
  __device__ __forceinline__ Barrier empty(int of) const { return full(S::kStages + of); }
  __device__ __forceinline__ void next() {
    if (++stage == S::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};
// Stages that the producer filled: which slot of x's scales may be filled again.
struct Fp4Filled {
  int count;  // before it
  int stage;
  std::uint32_t parity;
};
struct Fp4History {
  int count = 0;
  Fp4Filled last{-64, 0, 0};    // of all
  Fp4Filled before{-64, 0, 0};  // the last that reads the other slot
};

template <class S>
__device__ __forceinline__ void fp4_produce(const CUtensorMap& codes, const CUtensorMap& x_scales,
                                            const LinearParams& l, Fp4Tile tile, Fp4Ring<S>& ring,
                                            Fp4History& history) {
  const int last_row_tile = static_cast<int>(l.weight.padded_rows / kTileRows) - 1;
#pragma unroll 1
  for (int k = 0; k < l.k_tiles; k += 2) {
    const auto tiles = static_cast<std::uint32_t>(min(2, l.k_tiles - k));
    const bool scales = k % S::kScaleTiles == 0;
    ring.empty(ring.stage).wait(ring.parity ^ 1);
    const Barrier full = ring.full(ring.stage);
    full.arrive_expecting(S::kTokenBytes + (scales ? S::kTokenScaleBytes : 0) +
                          tiles * S::kGroups * (S::kTileBytes + S::kTileScaleBytes));
    copy_box(ring.tokens(), &codes, k * (kTileCols / 2), tile.token * S::kTokens, full);
    if (scales) {
      ring.slot ^= 1;
      // Waits after little K only: with kStages filled since, the wait above was for that stage or a later one.
      const Fp4Filled& reader = history.before;
      if (history.count - reader.count < S::kStages) ring.empty(reader.stage).wait(reader.parity);
      history.before = history.last;
      copy_box(ring.token_scales(), &x_scales, k * (kTileCols / 16), tile.token * S::kTokens, full);
    }
#pragma unroll
    for (int g = 0; g < S::kGroups; ++g) {  // past the weight's rows: the last tile again, whose sums nobody reads
      const int row_tile = min(tile.row * S::kGroups + g, last_row_tile);
      const std::int64_t at = static_cast<std::int64_t>(row_tile) * l.k_tiles + k;
      copy_bytes(ring.codes() + g * 2 * S::kTileBytes, l.weight.codes + at * S::kTileBytes, tiles * S::kTileBytes,
                 full);
      copy_bytes(ring.scales() + g * 2 * S::kTileScaleBytes, l.weight.scales + at * S::kTileScaleBytes,
                 tiles * S::kTileScaleBytes, full);
    }
    history.last = {history.count++, ring.stage, ring.parity};
    ring.next();
  }
}

template <class S>
class Fp4Consumer {
  static constexpr int kSums = S::kColumns * 4;

 public:
  __device__ __forceinline__ Fp4Consumer(const LinearParams& l, int warp)
      : l_(l), lane_(static_cast<int>(threadIdx.x) % 32), row0_(warp % S::kRowWarps * S::kUnits),
        token0_(warp / S::kRowWarps * S::kColumns * 8) {
    const int p = lane_ % 4, g = lane_ / 4;
    codes_at_ = place(row0_, S::kTileBytes) + static_cast<std::uint32_t>(lane_ * 16);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int unit = row0_ + 2 * pair + (S::kUnits == 1 ? 0 : p / 2);
      scales_at_[pair] = place(unit, S::kTileScaleBytes) + static_cast<std::uint32_t>((p % 2 * 8 + g) * 4);
    }
    // Lanes 8 i .. 8 i + 7 give the rows of ldmatrix' i-th block: chunk i % 2 of a step, tokens 8 (i / 2) ...
    const int row = lane_ % 8 + lane_ / 16 * 8, chunk = lane_ / 8 % 2;
    tokens_at_ = static_cast<std::uint32_t>((token0_ + row) * 64 + (chunk ^ (row / 2 % 4)) * 16);
    // Chunk c of row r lies at c ^ (bits of r: as many rows as fill 128 bytes have the same).
    token_scales_at_ = static_cast<std::uint32_t>(((token0_ + p * 8 + g) * S::kScaleChunks +
                                                   g * S::kScaleChunks / 8 % S::kScaleChunks) * 16);
  }

  // All of K; the totals are in sums() then.
  __device__ __forceinline__ void run(Fp4Ring<S>& ring) {
    clear();
    if constexpr (S::kTotals) {
#pragma unroll
      for (auto& unit : total_) {
#pragma unroll
        for (float& t : unit) t = 0.0f;
      }
    }
    fold_at_ = min(l_.segment_tiles, l_.k_tiles);
#pragma unroll 1
    for (int k = 0; k < l_.k_tiles; k += 2) {
      if (k % S::kScaleTiles == 0) ring.slot ^= 1;
      ring.full(ring.stage).wait(ring.parity);
      const std::uint32_t x_scales = ring.token_scales() + token_scales_at_ + static_cast<std::uint32_t>(k % 4 * 4);
      const auto chunk = static_cast<std::uint32_t>(k % S::kScaleTiles / 4 * 16);
      uint2 scales[S::kColumns / 4];
#pragma unroll
      for (int i = 0; i < S::kColumns / 4; ++i) {
        scales[i] = shared_2((x_scales + static_cast<std::uint32_t>(i * 512 * S::kScaleChunks)) ^ chunk);
        scales[i].x &= 0x7F7F7F7Fu;
        scales[i].y &= 0x7F7F7F7Fu;
      }
      step<0>(ring, scales, k);
      if (k + 1 < l_.k_tiles) step<1>(ring, scales, k + 1);
      // Each lane speaks for itself: racecheck does not follow a __syncwarp and one lane's arrival.
      ring.empty(ring.stage).arrive();
      ring.next();
    }
  }
  __device__ __forceinline__ void store(Fp4Tile tile, int rows) const {
#pragma unroll
    for (int u = 0; u < S::kUnits; ++u) {
      const std::int64_t n0 = static_cast<std::int64_t>(tile.row) * S::kRows + (row0_ + u) * kUnitRows;
      if (n0 >= l_.weight.padded_rows) continue;
      const std::int64_t token = static_cast<std::int64_t>(tile.token) * S::kTokens + token0_;
      if constexpr (S::kTotals) {
        store_tile<true>(l_, n0, token, rows, lane_, total_[u]);
      } else {
        store_tile<true>(l_, n0, token, rows, lane_, sum_[u]);
      }
    }
  }

 private:
  static constexpr int kPairs = (S::kUnits + 1) / 2;

  // Of a unit of the tile, in tiles of `bytes`; each group of 64 rows has two of them.
  __device__ __forceinline__ static std::uint32_t place(int unit, int bytes) {
    return static_cast<std::uint32_t>(unit / 4 * 2 * bytes + unit % 4 * (bytes / 4));
  }
  template <int Step>
  __device__ __forceinline__ void step(const Fp4Ring<S>& ring, const uint2 (&token_scales)[S::kColumns / 4], int k) {
    std::uint32_t a[S::kUnits][4], scales[kPairs];
#pragma unroll
    for (int u = 0; u < S::kUnits; ++u) {
      const uint4 v = shared_4(ring.codes() + codes_at_ + place(u, S::kTileBytes) + Step * S::kTileBytes);
      a[u][0] = v.x;
      a[u][1] = v.y;
      a[u][2] = v.z;
      a[u][3] = v.w;
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      scales[i] = shared_1(ring.scales() + scales_at_[i] + Step * S::kTileScaleBytes) & 0x7F7F7F7Fu;
    }
#pragma unroll
    for (int j = 0; j < S::kColumns; j += 4) {
      std::uint32_t b[4][2];
#pragma unroll
      for (int i = 0; i < 4; i += 2) {  // the step's chunks are 2 Step and + 1: bit 1 of the place
        const uint4 v = load_matrices((ring.tokens() + tokens_at_ + static_cast<std::uint32_t>((j + i) * 512)) ^
                                      (Step * 32u));
        b[i][0] = v.x;
        b[i][1] = v.y;
        b[i + 1][0] = v.z;
        b[i + 1][1] = v.w;
      }
      const std::uint32_t scale = Step == 0 ? token_scales[j / 4].x : token_scales[j / 4].y;
      columns<0>(j, a, scales, b, scale);
      columns<1>(j, a, scales, b, scale);
      columns<2>(j, a, scales, b, scale);
      columns<3>(j, a, scales, b, scale);
    }
    if constexpr (S::kTotals) {
      if (k + 1 == fold_at_) fold();
    }
  }
  template <int J>
  __device__ __forceinline__ void columns(int j, const std::uint32_t (&a)[S::kUnits][4],
                                          const std::uint32_t (&scales)[kPairs], const std::uint32_t (&b)[4][2],
                                          std::uint32_t scale) {
#pragma unroll
    for (int u = 0; u < S::kUnits; u += 2) {
      auto& even = *reinterpret_cast<float(*)[4]>(sum_[u] + 4 * (j + J));
      mma_m16n8k64_nvfp4<kFp4Path, 0, J>(even, a[u], b[J], scales[u / 2], scale);
      if constexpr (S::kUnits > 1) {
        auto& odd = *reinterpret_cast<float(*)[4]>(sum_[u + 1] + 4 * (j + J));
        mma_m16n8k64_nvfp4<kFp4Path, 1, J>(odd, a[u + 1], b[J], scales[u / 2], scale);
      }
    }
  }
  // A segment ends.
  __device__ __forceinline__ void fold() {
#pragma unroll
    for (int u = 0; u < S::kUnits; ++u) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) total_[u][i] = num::add(total_[u][i], sum_[u][i]);
    }
    clear();
    fold_at_ = min(fold_at_ + l_.segment_tiles, l_.k_tiles);
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& unit : sum_) {
#pragma unroll
      for (float& s : unit) s = 0.0f;
    }
  }

  const LinearParams& l_;
  int lane_, row0_, token0_, fold_at_ = 0;  // units, tokens of the tile before this warp's
  std::uint32_t codes_at_, scales_at_[kPairs], tokens_at_, token_scales_at_;
  float sum_[S::kUnits][kSums];
  float total_[S::kTotals ? S::kUnits : 1][S::kTotals ? kSums : 1];
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    linear_fp4(const __grid_constant__ CUtensorMap codes, const __grid_constant__ CUtensorMap x_scales,
               const __grid_constant__ LinearParams l) {
#if defined(NIBBLE_BULK_COPY)
  extern __shared__ std::uint8_t raw[];
  Fp4Ring<S> ring{(shared_address(raw) + 1023u) & ~1023u};
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::kStages; ++s) {
      ring.full(s).init(1);
      ring.empty(s).init(S::kConsumers * 32);
    }
    fence_barriers();
  }
  __syncthreads();
  const int rows = row_count(*l.step, l.rows), warp = static_cast<int>(threadIdx.x) / 32;
  const int token_tiles = (rows + S::kTokens - 1) / S::kTokens;
  const int tiles = static_cast<int>((l.weight.padded_rows + S::kRows - 1) / S::kRows) * token_tiles;
  if (warp >= S::kConsumers) {
    if constexpr (S::kGive) give_registers<S::kProducerRegisters>();
    if (threadIdx.x != S::kConsumers * 32) return;
    Fp4History history;
#pragma unroll 1
    for (int i = static_cast<int>(blockIdx.x); i < tiles; i += static_cast<int>(gridDim.x)) {
      fp4_produce<S>(codes, x_scales, l, {i / token_tiles, i % token_tiles}, ring, history);
    }
    return;
  }
  if constexpr (S::kGive) take_registers<S::kConsumerRegisters>();
  Fp4Consumer<S> consumer(l, warp);
#pragma unroll 1
  for (int i = static_cast<int>(blockIdx.x); i < tiles; i += static_cast<int>(gridDim.x)) {
    consumer.run(ring);
    consumer.store({i / token_tiles, i % token_tiles}, rows);
  }
#endif
}

}  // namespace nibble::cuda
