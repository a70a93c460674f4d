// linear_group_choice.cu: whether linear_group.cuh serves, and with which tile.
#include <algorithm>
#include <string>

#include "backends/cuda/check.h"
#include "backends/cuda/ops/linear_group_tiles.cuh"
#include "nibble/error.h"

namespace nibble::cuda {
namespace {

// Rows of x that a tile shall have: an expert has max_rows at most, and where tokens spread well seldom a fifth more than
// its share and four.
std::int64_t wanted_rows(const Launch& to, int experts) {
  const std::int64_t even = to.max_of(Rows::routed) / experts;
  return std::min(to.max_rows, even + even / 5 + 4);
}
bool one_segment(const WeightImage& w) {
  return w.block == nullptr && num::linear_segments(w.rows, w.cols, false).count == 1;
}
// Why a tile does not serve; null: it does.
const char* refuse_tile(const GroupedTile& t, const WeightImage& w) {
  return t.totals == Totals::none && !one_segment(w) ? "the weight has several segments or scales of blocks" : nullptr;
}
int tile_for(const Launch& to, int experts, const WeightImage& w) {
  int last = 0;
  for (int i = 0; i < kGroupedTileCount; ++i) {
    if (refuse_tile(kGroupedTiles[i], w) != nullptr) continue;
    last = i;
    if (kGroupedTiles[i].tokens >= wanted_rows(to, experts)) break;
  }
  return last;
}
// A step with all rows of its class: tokens as spread over experts as can be.
std::int64_t units_at_most(const Launch& to, int experts, const WeightImage& w, int tokens) {
  const std::int64_t places = to.max_of(Rows::routed);
  const std::int64_t tiles = std::min(places, places / tokens + experts);
  return tiles * ((w.padded_rows + kGroupRows - 1) / kGroupRows);
}

}  // namespace

const char* refuse_group(const Launch& to, const GroupedLinearArgs& a) {
  const LinearArgs& l = a.linear;
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  if (l.path != ArchPath::sm90) return "the path is not sm90";
  if (!has_wgmma()) return "the card runs no code for sm_90a";
  if (a.experts < 1 || a.experts > kMostExperts) return "there are no experts, or more than 1024";
  if (to.experts_per_token < 1) return "the program has no experts";
  if (to.multiprocessors <= 0) return "the number of multiprocessors is not known";
  if (l.weight.values != DType::bf16) return "the weight was not packed for bf16 operands";
  if (l.format.kind != ActivationKind::none) return "x is quantised";
  if (!l.weight.plain) return "an FP8 code is NaN";
  if (l.weight.format == WeightFormat::nvfp4 && l.weight.scale_code != ScaleCode::e5m3) {
    return "block scales were not packed for sm90";
  }
  if (reinterpret_cast<std::uintptr_t>(l.x.data) % 16 != 0) return "x is not aligned to 16 bytes";
  if (l.x.stride % 8 != 0) return "rows of x are not aligned to 16 bytes";
  if (to.max_of(l.x.rows) * (l.x.stride / 8) >= kMost) return "x has 2^31 units of 16 bytes or more";
  if (l.tile == kPlainTile) return "a plain kernel was asked for";
  const GroupedTile& tile = kGroupedTiles[l.tile >= 0 && l.tile < kGroupedTileCount ? l.tile
                                                                                  : tile_for(to, a.experts, l.weight)];
  const std::int64_t units = units_at_most(to, a.experts, l.weight, tile.tokens);
  if (units >= kMost) return "there are 2^31 units or more";
  // The plain kernel for few rows cuts the same weights into eight times as many blocks.
  if (l.tile < 0 && tile.tokens == 8 && units < 2 * to.multiprocessors) {
    return "there are fewer than two units for each multiprocessor";
  }
  return nullptr;
}

void launch_group(const Launch& to, const GroupedParams& p) {
  int tile = tile_for(to, p.experts, p.weight);
  if (p.tile >= 0) {
    tile = p.tile;
    const char* why = tile < kGroupedTileCount ? refuse_tile(kGroupedTiles[tile], p.weight) : "no such tile";
    if (why != nullptr) {
      throw Error(ErrorCode::internal, "[cuda] grouped linear: tile " + std::to_string(tile) + ": " + why);
    }
  }
  const auto start = p.weight.format == WeightFormat::nvfp4      ? start_group_nvfp4
                     : p.weight.format == WeightFormat::fp8_e4m3 ? start_group_fp8
                                                                 : start_group_bf16;
  check(start(to, tile, p, units_at_most(to, p.experts, p.weight, kGroupedTiles[tile].tokens)), "grouped linear");
}

std::string group_choice(const Launch& to, const GroupedParams& p) {
  const GroupedTile& tile = kGroupedTiles[tile_for(to, p.experts, p.weight)];
  return std::string("tile ") + tile.name + ", " +
         std::to_string(units_at_most(to, p.experts, p.weight, tile.tokens)) + " units at most, " +
         std::to_string(p.segments) + " segments";
}

std::vector<LinearTile> grouped_tiles(const GroupedParams& p) {
  std::vector<LinearTile> all;
  for (const GroupedTile& t : kGroupedTiles) {
    const char* const why = refuse_tile(t, p.weight);
    all.push_back({t.name, why == nullptr ? "" : why});
  }
  return all;
}

}  // namespace nibble::cuda
