// linear_start.cuh: launches of linear_wgmma.cuh and linear_stream.cuh.
#pragma once

#include <utility>

#include "backends/cuda/launch_early.h"
#include "backends/cuda/ops/linear_stream.cuh"
#include "backends/cuda/ops/linear_wgmma.cuh"
#include "backends/cuda/tensor_map.h"

namespace nibble::cuda {

// How many blocks, and their shared memory. With no more units than multiprocessors each is to have one before any has
// two: so much memory that two blocks do not fit beside each other.
template <class S, class Kernel>
cudaError_t place(const Launch& to, const WgmmaParams& p, Kernel kernel, int& blocks, int& shared) {
  constexpr int kAloneBytes = S::kSharedBytes < 120 * 1024 ? 120 * 1024 : S::kSharedBytes;
  const bool alone = p.units <= to.multiprocessors;
  blocks = to.multiprocessors * (alone ? 1 : S::kBlocks);
  shared = alone ? kAloneBytes : S::kSharedBytes;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kAloneBytes);
}

// A stage's box of x [rows, cols]: 64 columns and S::kTokens rows, or S::kDeep such side by side.
template <class S>
CUtensorMap map_of(const Launch& to, const WgmmaParams& p) {
  const LinearParams& l = p.linear;
  return tensor_map({CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, l.x, l.weight.cols, to.max_of(l.rows), l.x_stride * 2, kTileCols,
                     S::kTokens, CU_TENSOR_MAP_SWIZZLE_128B, p.side_by_side ? S::kDeep : 1, 2});
}

template <WeightFormat F, bool SwiGlu, int Tile>
cudaError_t start_tile(const Launch& to, const WgmmaParams& p) {
  constexpr WgmmaTile kTile = kWgmmaTiles[Tile];
  int blocks = 0, shared = 0;
  if constexpr (kTile.tokens <= 32) {
    using S = StreamShape<F, kTile.tokens, kTile.totals, kTile.relays>;
    const auto kernel = linear_stream<F, kTile.tokens, kTile.totals, kTile.relays, SwiGlu>;
    const cudaError_t e = place<S>(to, p, kernel, blocks, shared);
    if (e != cudaSuccess) return e;
    if (p.units < blocks) blocks = static_cast<int>(p.units);
    return launch_early(kernel, static_cast<unsigned>(blocks), S::kThreads, static_cast<unsigned>(shared), to.stream,
                        map_of<S>(to, p), p, stream_plan(p, blocks));
  } else {
    using S = WgmmaShape<F, kTile.tokens, kTile.totals>;
    const auto kernel = linear_wgmma<F, kTile.tokens, kTile.totals, SwiGlu>;
    const cudaError_t e = place<S>(to, p, kernel, blocks, shared);
    if (e != cudaSuccess) return e;
    return launch_early(kernel, static_cast<unsigned>(blocks), S::kThreads, static_cast<unsigned>(shared), to.stream,
                        map_of<S>(to, p), p);
  }
}

template <WeightFormat F, bool SwiGlu = false>
cudaError_t start_wgmma(const Launch& to, int tile, const WgmmaParams& p) {
  cudaError_t e = cudaErrorInvalidValue;
  [&]<int... Tile>(std::integer_sequence<int, Tile...>) {
    ((tile == Tile ? (e = start_tile<F, SwiGlu, Tile>(to, p), true) : false) || ...);
  }(std::make_integer_sequence<int, kWgmmaTileCount>());
  return e;
}

}  // namespace nibble::cuda
