// delta_units.cuh: prefill rows of the delta rule on sm_90's matrix units (core/numerics/delta_order.h), in two launches.
//   prepare   a block for each chunk and value head, all at once: A, M and the decays, which know nothing of S
//   pass      a block for each sequence, value head and 64 of its columns, chunk after chunk
//   record    what the first leaves to the second of a chunk and head: A and M as wgmma's B, swizzled (A: 32 columns of
//             float32, then 32 more of rows 32 to 63, those of the others being zero; in eights of columns the even ones
//             first, as a lane's fragment of R has them), d(G_i) and d(G_last - G_i)
#pragma once

#include <cuda.h>

#include "backends/cuda/device/sequence.cuh"
#include "backends/cuda/device/sm90_delta.cuh"
#include "backends/cuda/ops/delta_grid.cuh"
#include "backends/cuda/ops/delta_rule.h"
#include "core/numerics/delta_order.h"

namespace nibble::cuda {

constexpr int kHalfOfA = kDeltaChunk * 32 * 4, kABytes = kHalfOfA + kHalfOfA / 2 /* in the record */, kMBytes = kDeltaChunk * kDeltaChunk * 2;
constexpr int kDecaysAt = kABytes + kMBytes;  // of the record: grown, then rest
constexpr int kRecordBytes = kDecaysAt + 2 * kDeltaChunk * 4;
static_assert(kRecordBytes % 16 == 0);

// Keys or queries of a chunk in shared memory: boxes of up to 64 columns side by side, each row swizzled.
template <int KeyDim>
struct KeyTile {
  static constexpr int kBoxCols = KeyDim < 64 ? KeyDim : 64, kBoxes = KeyDim / kBoxCols, kRowBytes = kBoxCols * 2;
  static constexpr int kBoxBytes = kDeltaChunk * kRowBytes, kBytes = kBoxes * kBoxBytes, kSteps = KeyDim / 16;
  static_assert(KeyDim % kBoxCols == 0);
  // Of 16 bytes, 8 columns.
  __device__ __forceinline__ static std::uint32_t at(int row, int eight) {
    const int box = eight / (kBoxCols / 8), c = eight % (kBoxCols / 8);
    const int turned = kRowBytes == 128 ? c ^ (row & 7) : c ^ (row >> 1 & 3);
    return static_cast<std::uint32_t>(box * kBoxBytes + row * kRowBytes + turned * 16);
  }
  // B of 16 columns of k.
  __device__ __forceinline__ static std::uint64_t step(std::uint32_t tile, int s) {
    const int box = s / (kBoxCols / 16), in = s % (kBoxCols / 16);
    return tile_of<kRowBytes>(tile + static_cast<std::uint32_t>(box * kBoxBytes + in * 32));
  }
  // B of 16 rows as steps of k, all columns.
  __device__ __forceinline__ static std::uint64_t rows_step(std::uint32_t tile, int s) {
    return across_tile<kRowBytes>(tile + static_cast<std::uint32_t>(s * 16 * kRowBytes), kBoxBytes);
  }
  __device__ __forceinline__ static void copy(std::uint32_t to, const void* map, int column, int row, Barrier done) {
#pragma unroll
    for (int b = 0; b < kBoxes; ++b) copy_box(to + static_cast<std::uint32_t>(b * kBoxBytes), map, column + b * kBoxCols, row, done);
  }
};

struct DeltaUnitsParams {
  const StepView* steps;
  TypedRows<float> g, beta;
  TypedRows<Bf16> y;
  DeltaLayerView state;
  Section section;
  std::byte* records;
  bool warps;  // products by each warp's mma.sync, not by a warpgroup's wgmma
  __device__ __forceinline__ std::byte* record(std::int64_t chunk, int head) const {
    return records + (chunk * state.shape.value_heads + head) * kRecordBytes;
  }
};

// The two kernels; key_dim is 32 or 128. `map`: of qkv, boxes of 64 rows by KeyTile's columns; `values`: by 64 columns.
void delta_prepare(const Launch& to, const CUtensorMap& map, const DeltaUnitsParams& p);
void delta_pass(const Launch& to, const CUtensorMap& map, const CUtensorMap& values, const DeltaUnitsParams& p);

}  // namespace nibble::cuda
