// linear_start.cuh: launches of linear_wgmma.cuh and linear_stream.cuh.
#pragma once

#include <utility>

#include "backends/cuda/ops/linear_stream.cuh"
#include "backends/cuda/ops/linear_wgmma.cuh"

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

template <WeightFormat F, bool SwiGlu, int Tile>
cudaError_t start_tile(const Launch& to, const CUtensorMap& map, const WgmmaParams& p) {
  constexpr WgmmaTile kTile = kWgmmaTiles[Tile];
  int blocks = 0, shared = 0;
  if constexpr (kTile.tokens <= 32) {
    using S = StreamShape<F, kTile.tokens, kTile.totals, kTile.relays>;
    const auto kernel = linear_stream<F, kTile.tokens, kTile.totals, kTile.relays, SwiGlu>;
    const cudaError_t e = place<S>(to, p, kernel, blocks, shared);
    if (e != cudaSuccess) return e;
    if (p.units < blocks) blocks = static_cast<int>(p.units);
    kernel<<<static_cast<unsigned>(blocks), S::kThreads, static_cast<unsigned>(shared), to.stream>>>(
        map, p, stream_plan(p, blocks));
  } else {
    using S = WgmmaShape<F, kTile.rows, kTile.tokens, kTile.totals, kTile.producers>;
    const auto kernel = linear_wgmma<F, kTile.rows, kTile.tokens, kTile.totals, kTile.producers, SwiGlu>;
    const cudaError_t e = place<S>(to, p, kernel, blocks, shared);
    if (e != cudaSuccess) return e;
    kernel<<<static_cast<unsigned>(blocks), S::kThreads, static_cast<unsigned>(shared), to.stream>>>(map, p);
  }
  return cudaGetLastError();
}

template <WeightFormat F, bool SwiGlu = false>
cudaError_t start_wgmma(const Launch& to, int tile, const CUtensorMap& map, const WgmmaParams& p) {
  constexpr int kCount = F == WeightFormat::nvfp4 && !SwiGlu ? kWgmmaTileCount : kWgmmaTilesChosen;
  cudaError_t e = cudaErrorInvalidValue;
  [&]<int... Tile>(std::integer_sequence<int, Tile...>) {
    ((tile == Tile ? (e = start_tile<F, SwiGlu, Tile>(to, map, p), true) : false) || ...);
  }(std::make_integer_sequence<int, kCount>());
  return e;
}

}  // namespace nibble::cuda
