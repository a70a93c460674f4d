// delta_grid.cuh: a prompt's chunks on the absolute 64-grid, and where the records lie that one launch leaves to the next.
#pragma once

#include "backends/cuda/device/sequence.cuh"

namespace nibble::cuda {

constexpr int kDeltaChunk = 64;

// A range's chunks lie on the absolute 64-grid.
struct ChunkRows {
  int first, rows;  // of the range
};
__device__ __forceinline__ int first_chunk_room(const RangeView& r) {
  return kDeltaChunk - static_cast<int>(r.position % kDeltaChunk);
}
__device__ __forceinline__ int chunks_of(const RangeView& r) {
  const int behind = r.rows - first_chunk_room(r);
  return behind <= 0 ? 1 : 1 + (behind + kDeltaChunk - 1) / kDeltaChunk;
}
__device__ __forceinline__ ChunkRows chunk_of(const RangeView& r, int chunk) {
  const int room = first_chunk_room(r), first = chunk == 0 ? 0 : room + (chunk - 1) * kDeltaChunk;
  return {first, min(chunk == 0 ? room : kDeltaChunk, r.rows - first)};
}
// Where the records of a section's range begin, in chunks: a range of n rows has at most n / 64 + 2.
__device__ __forceinline__ int first_record(const RangeView& r, int index) { return r.first_row / kDeltaChunk + 2 * index; }
inline std::int64_t most_records(std::int64_t rows, std::int32_t ranges) { return rows / kDeltaChunk + 2 * std::int64_t{ranges}; }

// The chunk that `slot` of the records is for; rows 0: none.
struct Found {
  const RangeView* range;
  ChunkRows chunk;
};
__device__ __forceinline__ Found find_chunk(const StepView& step, Section section, int slot) {
  const int s = static_cast<int>(section), ranges = step.first_range[s + 1] - step.first_range[s];
  for (int i = 0; i < ranges; ++i) {
    const RangeView* r = step.range + step.first_range[s] + i;
    const int chunk = slot - first_record(*r, i);
    if (chunk < 0) break;
    if (r->rows > 0 && chunk < chunks_of(*r)) return {r, chunk_of(*r, chunk)};
  }
  return {nullptr, {0, 0}};
}

}  // namespace nibble::cuda
