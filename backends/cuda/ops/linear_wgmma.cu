// linear_wgmma.cu: which tile of linear_wgmma.cuh serves, and the tensor map of x.
#include "backends/cuda/ops/linear_schedule.cuh"

#include <algorithm>

#include "backends/cuda/check.h"
#include "backends/cuda/tensor_map.h"

namespace nibble::cuda {
namespace {

// Boxes of 64 columns and `tokens` rows of x [rows, cols].
CUtensorMap map_of(const LinearParams& p, std::int64_t rows, int tokens) {
  return tensor_map({CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, p.x, p.weight.cols, rows, p.x_stride * 2, kTileCols, tokens,
                     CU_TENSOR_MAP_SWIZZLE_128B});
}

struct Choice {
  int tokens;
  Totals totals;
  bool split;
  std::int64_t units;
};
// For a class of `rows` rows. Larger tiles read fewer bytes for a product, smaller ones keep every multiprocessor
// busy: relative times of a unit of K, from measurements, and how many rounds of units there are.
Choice choose(const LinearParams& p, std::int64_t rows, int multiprocessors) {
  const std::int64_t row_tiles = (p.weight.padded_rows + kWgmmaRows - 1) / kWgmmaRows;
  const auto tiles = [&](int tokens) { return row_tiles * ((rows + tokens - 1) / tokens); };
  const bool blocks = p.weight.block != nullptr, one = p.segments == 1 && !blocks;
  // A sum of each unit lies in two areas.
  const auto can_split = [&](int tokens) {
    const std::int64_t slot = kWgmmaRows * tokens * 4;
    const bool few = tokens <= 32 || tiles(tokens) < multiprocessors;
    return !one && !blocks && few && tiles(tokens) * p.segments * slot <= std::int64_t{multiprocessors} * 2 * kAreaPerProcessor;
  };
  const auto units = [&](int tokens) { return tiles(tokens) * (can_split(tokens) ? p.segments : 1); };
  for (const int few : {8, 16, 32, 64}) {
    if (rows > few) continue;
    const bool split = can_split(few);
    return {few, one || split ? Totals::none : Totals::registers, split, units(few)};
  }
  if (blocks || rows <= 128) return {128, Totals::registers, can_split(128), units(128)};
  const auto time = [&](int tokens, double unit) {
    const double rounds = static_cast<double>(units(tokens)) / multiprocessors;
    return unit / (can_split(tokens) ? p.segments : 1) * std::max(1.0, rounds);
  };
  if (time(128, 0.64) < time(256, 1)) return {128, Totals::registers, can_split(128), units(128)};
  const bool split = can_split(256);
  return {256, one || split ? Totals::none : Totals::memory, split, units(256)};
}

}  // namespace

std::uint64_t wgmma_sums_bytes(int multiprocessors) {
  return kFlagBytes + static_cast<std::uint64_t>(multiprocessors) * kSumsPerProcessor;
}

void launch_wgmma(const Launch& to, const LinearParams& l) {
  const std::int64_t rows = to.max_of(l.rows);
  const Choice choice = choose(l, rows, to.multiprocessors);
  const WgmmaParams p{l, to.sums, choice.split, choice.units, to.multiprocessors};
  const CUtensorMap map = map_of(l, rows, choice.tokens);
  const auto start = l.weight.format == WeightFormat::nvfp4      ? start_wgmma_nvfp4
                     : l.weight.format == WeightFormat::fp8_e4m3 ? start_wgmma_fp8
                                                                 : start_wgmma_bf16;
  check(start(to, choice.tokens, choice.totals, map, p), "linear");
}

}  // namespace nibble::cuda
