// linear_schedule.cuh: which block of linear_wgmma.cuh computes what, and where sums wait that go on elsewhere.
#pragma once

#include <cuda.h>

#include "backends/cuda/ops/linear_parts.cuh"

namespace nibble::cuda {

constexpr int kFlagBytes = 1 << 16;  // of `sums`: a flag for each block, a counter for each tile of a split, for each
                                     // row tile of 64; all zero between launches
constexpr int kCounters = 1 << 11;   // their place behind the flags
constexpr int kAreaPerProcessor = 1 << 17;  // bytes of each of three areas behind them
constexpr int kSumsPerProcessor = 3 * kAreaPerProcessor;

// Where a row's total is while a segment's products run.
//   none       weights of one segment, or a unit is one segment
//   registers  128 rows of x at most
//   memory     in the block's own part of `sums`, which stays in L2
enum class Totals { none, registers, memory };

struct WgmmaParams {
  LinearParams linear;
  std::byte* sums;
  bool split;  // a unit is a segment
  bool side_by_side;  // the map of x has a stage's k tiles in one box
  std::int64_t units;  // of a step that has all rows of its class
  int multiprocessors;
};

// A run of K of one unit.
struct WgmmaWork {
  int row, token, segment;
  int first, last;  // k tiles [first, last)
  bool enter, leave;
};

// How units are dealt to blocks: whole ones in rounds; where they are no multiple of the blocks, the last one or two of
// each block are cut into equal shares, so that all end together.
struct UnitRounds {
  int rounds, whole;  // whole units: this many, in this many rounds
  bool cut;           // the others
};
NIBBLE_HD UnitRounds unit_rounds(int units, int blocks, int k_tiles, int length) {
  const bool cut = units > blocks && units % blocks != 0 && k_tiles % length == 0;
  const int rounds = cut ? units / blocks - 1 : (units + blocks - 1) / blocks;
  return {rounds, cut ? rounds * blocks : units, cut};
}

// What a block does, in order. Producer and consumers step through it alike.
class UnitSchedule {
 public:
  // False after the last.
  __device__ __forceinline__ bool at(int i, WgmmaWork& w) const {
    if (i < rounds_) {
      const int unit = i * grid_ + block_;
      if (unit >= units_) return false;
      whole(w, unit);
      return true;
    }
    if (end_ == 0 && begin_ == 0) return false;
    int piece = i - rounds_;
    const int ahead = end_ % length_, behind = begin_ % length_;
    if (ahead != 0 && piece-- == 0) {
      whole(w, units_ + end_ / length_);
      w.last = w.first + ahead;
      w.leave = true;
      return true;
    }
    const int from = begin_ / length_ + (behind != 0), count = end_ / length_ - from;
    if (piece < count) {
      whole(w, units_ + from + piece);
      return true;
    }
    if (piece > count || behind == 0) return false;
    whole(w, units_ + begin_ / length_);
    w.first += behind;
    w.enter = true;
    return true;
  }

 protected:
  __device__ __forceinline__ void whole(WgmmaWork& w, int unit) const {
    const int tile = split_ ? unit / segments_ : unit;
    w.segment = split_ ? unit % segments_ : 0;
    w.row = token_tiles_ == 1 ? tile : tile / token_tiles_;
    w.token = token_tiles_ == 1 ? 0 : tile % token_tiles_;
    w.first = w.segment * length_;
    w.last = min(w.first + length_, k_tiles_);
    w.enter = w.leave = false;
  }

  int token_tiles_, k_tiles_, segments_, length_, grid_, block_;
  int rounds_, units_, begin_, end_;
  bool split_;
};

// Any number of token tiles: as many as the step has rows for. In shared memory.
class WgmmaSchedule : public UnitSchedule {
 public:
  __device__ __forceinline__ void plan(const WgmmaParams& p, int rows, int tokens, int tile_rows, int blocks) {
    const LinearParams& l = p.linear;
    rows_ = rows;
    token_tiles_ = (rows + tokens - 1) / tokens;
    const int tiles = static_cast<int>((l.weight.padded_rows + tile_rows - 1) / tile_rows) * token_tiles_;
    k_tiles_ = l.k_tiles;
    segments_ = l.segments;
    grid_ = blocks;
    block_ = static_cast<int>(blockIdx.x);
    split_ = p.split;
    length_ = split_ ? l.segment_tiles : k_tiles_;
    const int units = split_ ? tiles * segments_ : tiles;
    const UnitRounds r = unit_rounds(units, grid_, k_tiles_, length_);
    rounds_ = r.rounds;
    units_ = r.whole;
    begin_ = end_ = 0;
    if (!r.cut) return;
    const std::int64_t left = static_cast<std::int64_t>(units - units_) * length_;
    begin_ = static_cast<int>(left * block_ / grid_);
    end_ = static_cast<int>(left * (block_ + 1) / grid_);
  }
  __device__ __forceinline__ bool split() const { return split_; }
  __device__ __forceinline__ int rows() const { return rows_; }
  __device__ __forceinline__ int tile(const WgmmaWork& w) const { return w.row * token_tiles_ + w.token; }

 private:
  int rows_;
};

// One token tile, which leaves little to plan on the device: a small launch would feel it.
struct StreamPlan {
  UnitRounds rounds;
  int length, share, remainder;  // k tiles of the units that are cut: share for each block, and so many more
};
inline StreamPlan stream_plan(const WgmmaParams& p, int blocks) {
  const LinearParams& l = p.linear;
  const int length = p.split ? l.segment_tiles : l.k_tiles, units = static_cast<int>(p.units);
  const UnitRounds r = unit_rounds(units, blocks, l.k_tiles, length);
  const std::int64_t left = r.cut ? static_cast<std::int64_t>(units - r.whole) * length : 0;
  return {r, length, static_cast<int>(left / blocks), static_cast<int>(left % blocks)};
}
class StreamSchedule : public UnitSchedule {
 public:
  __device__ __forceinline__ void plan(const StreamPlan& plan, const WgmmaParams& p, int blocks) {
    token_tiles_ = 1;
    k_tiles_ = p.linear.k_tiles;
    segments_ = p.linear.segments;
    length_ = plan.length;
    grid_ = blocks;
    block_ = static_cast<int>(blockIdx.x);
    split_ = p.split;
    rounds_ = plan.rounds.rounds;
    units_ = plan.rounds.whole;
    begin_ = plan.share * block_ + plan.remainder * block_ / grid_;
    end_ = plan.share * (block_ + 1) + plan.remainder * (block_ + 1) / grid_;
  }
};

// A kernel of linear_stream.cuh (32 rows of x and fewer) or linear_wgmma.cuh. All give the same bits.
struct WgmmaTile {
  int tokens;  // rows of x; of the weight 128
  Totals totals;
  bool relays;  // two warps take turns at a chain (linear_stream.cuh)
  const char* name;
};
constexpr WgmmaTile kWgmmaTiles[] = {
    {8, Totals::none, true, "128x8"},
    {8, Totals::registers, false, "128x8, totals in registers"},
    {16, Totals::none, true, "128x16"},
    {16, Totals::registers, false, "128x16, totals in registers"},
    {32, Totals::none, true, "128x32"},
    {32, Totals::none, false, "128x32, one warp a chain"},
    {32, Totals::registers, false, "128x32, totals in registers"},
    {64, Totals::none, false, "128x64"},
    {64, Totals::registers, false, "128x64, totals in registers"},
    {128, Totals::registers, false, "128x128, totals in registers"},
    {256, Totals::none, false, "128x256"},
    {256, Totals::memory, false, "128x256, totals in memory"},
};
constexpr int kWgmmaTileCount = sizeof kWgmmaTiles / sizeof kWgmmaTiles[0], kWgmmaTileRows = 128;

bool has_wgmma();  // whether the card runs code for sm_90a

// Launches of a tile for each weight format, in files of their own because they take long to compile.
// cudaErrorInvalidValue: there is none.
cudaError_t start_wgmma_nvfp4(const Launch& to, int tile, const WgmmaParams& p);
cudaError_t start_wgmma_fp8(const Launch& to, int tile, const WgmmaParams& p);
cudaError_t start_wgmma_bf16(const Launch& to, int tile, const WgmmaParams& p);
// The same for images of gate and up.
cudaError_t start_swiglu_nvfp4(const Launch& to, int tile, const WgmmaParams& p);
cudaError_t start_swiglu_fp8(const Launch& to, int tile, const WgmmaParams& p);
cudaError_t start_swiglu_bf16(const Launch& to, int tile, const WgmmaParams& p);

}  // namespace nibble::cuda
