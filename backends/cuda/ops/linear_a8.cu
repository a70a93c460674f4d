// linear_a8.cu: launches of linear_a8.cuh.
#include "backends/cuda/ops/linear_a8.cuh"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/check.h"
#include "backends/cuda/launch_early.h"
#include "backends/cuda/tensor_map.h"
#include "nibble/error.h"

namespace nibble::cuda {
namespace {

struct A8Tile {
  int tokens, chunk, buffers;
  const char* name;
};
// All give the same bits. The first that has room for a class's rows serves it, the larger ones by their rounds.
constexpr A8Tile kTiles[] = {
    {8, 8, 1, "128x8"},
    {32, 32, 1, "128x32"},
    {64, 64, 1, "128x64"},
    {128, 64, 2, "128x128, two buffers"},
    {256, 64, 2, "128x256, two buffers"},
};
constexpr int kTileCount = sizeof kTiles / sizeof kTiles[0], kSmall = 3, kMiddle = 3, kLarge = 4;

std::int64_t units_of(const LinearParams& l, std::int64_t rows, int tokens) {
  return (l.weight.padded_rows + 127) / 128 * ((rows + tokens - 1) / tokens);
}

int choose(const LinearParams& l, std::int64_t rows, int multiprocessors) {
  for (int i = 0; i < kSmall; ++i) {
    if (rows <= kTiles[i].tokens) return i;
  }
  if (rows <= 128) return kMiddle;
  const auto time = [&](int tokens, double unit) {
    return unit * std::max(1.0, static_cast<double>(units_of(l, rows, tokens)) / multiprocessors);
  };
  return time(128, 0.6) < time(256, 1) ? kMiddle : kLarge;
}

template <int Tile>
cudaError_t start_tile(const Launch& to, const A8Params& p) {
  constexpr A8Tile kTile = kTiles[Tile];
  using S = A8Shape<kTile.tokens, kTile.chunk, kTile.buffers>;
  const auto kernel = linear_a8<kTile.tokens, kTile.chunk, kTile.buffers>;
  const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  if (e != cudaSuccess) return e;
  const LinearParams& l = p.wgmma.linear;
  const CUtensorMap map = tensor_map({CU_TENSOR_MAP_DATA_TYPE_UINT8, l.x, l.weight.cols, to.max_of(l.rows), l.x_stride,
                                      S::kChainCols, S::kTokens, CU_TENSOR_MAP_SWIZZLE_128B});
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(to.multiprocessors, p.wgmma.units));
  return launch_early(kernel, blocks, S::kThreads, S::kSharedBytes, to.stream, map, p);
}

}  // namespace

void launch_a8(const Launch& to, const LinearParams& l) {
  const std::int64_t rows = to.max_of(l.rows);
  const int tile = l.tile >= 0 ? l.tile : choose(l, rows, to.multiprocessors);
  if (tile >= kTileCount || kTiles[tile].tokens < std::min<std::int64_t>(rows, 65)) {
    throw Error(ErrorCode::internal, "[cuda] linear: tile " + std::to_string(tile) + " does not serve");
  }
  A8Params p{{l, to.sums, false, false, units_of(l, rows, kTiles[tile].tokens), to.multiprocessors}, l.k_tiles};
  p.wgmma.linear.k_tiles = (l.k_tiles + 1) / 2;
  cudaError_t e = cudaErrorInvalidValue;
  [&]<int... Tile>(std::integer_sequence<int, Tile...>) {
    ((tile == Tile ? (e = start_tile<Tile>(to, p), true) : false) || ...);
  }(std::make_integer_sequence<int, kTileCount>());
  check(e, "linear");
}

std::string a8_choice(const Launch& to, const LinearParams& l) {
  const std::int64_t rows = to.max_of(l.rows);
  const A8Tile& t = kTiles[choose(l, rows, to.multiprocessors)];
  return std::string("tile ") + t.name + ", " + std::to_string(units_of(l, rows, t.tokens)) + " units";
}

std::vector<LinearTile> a8_tiles(const Launch& to, const LinearParams& l) {
  std::vector<LinearTile> all;
  for (const A8Tile& t : kTiles) {
    const bool serves = t.tokens >= std::min<std::int64_t>(to.max_of(l.rows), 65);
    all.push_back({t.name, serves ? "" : "the class has more rows"});
  }
  return all;
}

}  // namespace nibble::cuda
