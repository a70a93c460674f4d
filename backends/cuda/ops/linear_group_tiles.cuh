// linear_group_tiles.cuh: what the blocks of linear_group.cuh compute: units of 128 weight rows by a tile of one expert's
// sorted rows, found on the device.
//   tiles   expert e has ceil((starts[e + 1] - starts[e]) / Tokens) of them, none without tokens: every unit has rows.
//           Each block adds them up once and finds a unit's expert by a search of two loads (last_at_most)
//   order   the row tiles of one tile of x are neighbours: blocks that run together share its rows
#pragma once

#include "backends/cuda/ops/linear_groups.cuh"
#include "backends/cuda/ops/linear_schedule.cuh"
#include "core/ops/expert_limits.h"

namespace nibble::cuda {

constexpr int kGroupRows = 128;  // weight rows of a unit

// All give the same bits.
struct GroupedTile {
  int tokens;
  Totals totals;
  const char* name;
};
constexpr GroupedTile kGroupedTiles[] = {
    {8, Totals::registers, "128x8"},
    {16, Totals::registers, "128x16"},
    {32, Totals::registers, "128x32"},
    {64, Totals::none, "128x64"},
    {64, Totals::registers, "128x64, totals in registers"},
    {128, Totals::registers, "128x128, totals in registers"},
};
constexpr int kGroupedTileCount = sizeof kGroupedTiles / sizeof kGroupedTiles[0];

NIBBLE_HD int group_tiles(int places, int tokens) { return (places + tokens - 1) / tokens; }

struct GroupWork {
  int row, expert;
  int first, end;  // sorted places, Tokens of them at most
};
// first_tiles: of each expert, with zero tiles or more, rising; `unit` is one of theirs.
template <class Ballot>
NIBBLE_HD GroupWork group_work(const std::int32_t* starts, const std::int32_t* first_tiles, int experts, int row_tiles,
                               int unit, int tokens, const Ballot& ballot) {
  const int tile = unit / row_tiles;
  const int e = last_at_most(experts, tile, [&](int i) { return first_tiles[i]; }, ballot);
  const int first = starts[e] + (tile - first_tiles[e]) * tokens, end = starts[e + 1];
  return {unit % row_tiles, e, first, first + tokens < end ? first + tokens : end};
}

// In shared memory.
template <int Tokens>
class GroupSchedule {
 public:
  // By all of a block's threads, which meet behind it.
  template <int Threads>
  __device__ __forceinline__ void plan(const GroupedParams& p) {
    constexpr int kEach = (kMostExperts + Threads - 1) / Threads;
    static_assert(Threads % 32 == 0 && Threads <= 1024);
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32, begin = thread * kEach;
    for (int e = thread; e <= p.experts; e += Threads) starts_[e] = p.starts[e];
    __syncthreads();
    int own = 0;
    for (int e = begin; e < min(begin + kEach, p.experts); ++e) own += tiles(e);
    int upto = own;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const int before = __shfl_up_sync(~0u, upto, by);
      if (lane >= by) upto += before;
    }
    if (lane == 31) warps_[warp] = upto;
    __syncthreads();
    int at = upto - own;
    for (int w = 0; w < warp; ++w) at += warps_[w];
    for (int e = begin; e < min(begin + kEach, p.experts); ++e) {
      first_tiles_[e] = at;
      at += tiles(e);
      if (e != p.experts - 1) continue;
      experts_ = p.experts;
      row_tiles_ = static_cast<int>((p.weight.padded_rows + kGroupRows - 1) / kGroupRows);
      units_ = at * row_tiles_;
    }
  }
  // By whole warps. False after the last.
  __device__ __forceinline__ bool at(int i, GroupWork& w) const {
    const int unit = i * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
    if (unit >= units_) return false;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    __syncwarp();
    const auto ballot = [lane](const auto& of) { return __ballot_sync(~0u, of(lane)); };
    w = group_work(starts_, first_tiles_, experts_, row_tiles_, unit, Tokens, ballot);
    return true;
  }

 private:
  __device__ __forceinline__ int tiles(int e) const { return group_tiles(starts_[e + 1] - starts_[e], Tokens); }

  std::int32_t starts_[kMostExperts + 1], first_tiles_[kMostExperts], warps_[32];
  int experts_, row_tiles_, units_;
};
constexpr int kGroupSpare = (sizeof(GroupSchedule<8>) + 255) / 256 * 256;  // bytes of shared memory

// Launches of a tile for each weight format, in files of their own. `units`: as many as there are at most.
cudaError_t start_group_nvfp4(const Launch& to, int tile, const GroupedParams& p, std::int64_t units);
cudaError_t start_group_fp8(const Launch& to, int tile, const GroupedParams& p, std::int64_t units);
cudaError_t start_group_bf16(const Launch& to, int tile, const GroupedParams& p, std::int64_t units);

// Why the kernel does not serve; null: it does. LinearArgs::tile is of kGroupedTiles.
const char* refuse_group(const Launch& to, const GroupedLinearArgs& a);
void launch_group(const Launch& to, const GroupedParams& p);
std::string group_choice(const Launch& to, const GroupedParams& p);  // "tile 128x8, 592 units at most"
std::vector<LinearTile> grouped_tiles(const GroupedParams& p);

}  // namespace nibble::cuda
