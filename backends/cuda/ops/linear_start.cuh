// linear_start.cuh: launches of linear_wgmma.cuh and linear_stream.cuh.
#pragma once

#include "backends/cuda/ops/linear_stream.cuh"
#include "backends/cuda/ops/linear_wgmma.cuh"

namespace nibble::cuda {

template <WeightFormat F, int Tokens, Totals T>
cudaError_t start_wgmma(const Launch& to, const CUtensorMap& map, const WgmmaParams& p) {
  using S = WgmmaShape<F, Tokens, T>;
  constexpr int kAloneBytes = 120 * 1024;
  const cudaError_t e = cudaFuncSetAttribute(linear_wgmma<F, Tokens, T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             S::kSharedBytes < kAloneBytes ? kAloneBytes : S::kSharedBytes);
  if (e != cudaSuccess) return e;
  // With no more units than multiprocessors each is to have one before any has two: so much memory that two blocks
  // do not fit beside each other.
  const bool alone = p.units <= to.multiprocessors;
  const int blocks = to.multiprocessors * (alone ? 1 : S::kBlocks);
  const int shared = alone && S::kSharedBytes < kAloneBytes ? kAloneBytes : S::kSharedBytes;
  linear_wgmma<F, Tokens, T>
      <<<static_cast<unsigned>(blocks), kWgmmaThreads, static_cast<unsigned>(shared), to.stream>>>(map, p);
  return cudaGetLastError();
}
template <WeightFormat F, int Tokens, Totals T>
cudaError_t start_stream(const Launch& to, const CUtensorMap& map, const WgmmaParams& p) {
  using S = StreamShape<F, Tokens, T>;
  const cudaError_t e = cudaFuncSetAttribute(linear_stream<F, Tokens, T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             S::kSharedBytes);
  if (e != cudaSuccess) return e;
  const auto blocks = static_cast<int>(p.units < to.multiprocessors ? p.units : to.multiprocessors);
  linear_stream<F, Tokens, T><<<static_cast<unsigned>(blocks), S::kThreads, S::kSharedBytes, to.stream>>>(
      map, p, stream_plan(p, blocks));
  return cudaGetLastError();
}
// Those that there are: 8 to 64 rows of x with totals nowhere or in registers, 128 in registers, 256 nowhere or in
// memory.
template <WeightFormat F>
cudaError_t start_wgmma(const Launch& to, int tokens, Totals totals, const CUtensorMap& map, const WgmmaParams& p) {
  const bool none = totals == Totals::none;
  switch (tokens) {
    case 8:
      return none ? start_stream<F, 8, Totals::none>(to, map, p) : start_stream<F, 8, Totals::registers>(to, map, p);
    case 16:
      return none ? start_stream<F, 16, Totals::none>(to, map, p) : start_stream<F, 16, Totals::registers>(to, map, p);
    case 32:
      return none ? start_stream<F, 32, Totals::none>(to, map, p) : start_stream<F, 32, Totals::registers>(to, map, p);
    case 64:
      return none ? start_wgmma<F, 64, Totals::none>(to, map, p) : start_wgmma<F, 64, Totals::registers>(to, map, p);
    case 128:
      return start_wgmma<F, 128, Totals::registers>(to, map, p);
    case 256:
      return none ? start_wgmma<F, 256, Totals::none>(to, map, p) : start_wgmma<F, 256, Totals::memory>(to, map, p);
  }
  return cudaErrorInvalidValue;
}

}  // namespace nibble::cuda
