// attention_pieces.cuh: which 64 positions of a prompt a block of attention_units.cu or attention_sm70.cuh has.
#pragma once

#include "backends/cuda/ops/delta_grid.cuh"
#include "core/numerics/attention_order.h"

namespace nibble::cuda {

static_assert(num::kAttentionTile == kDeltaChunk);

// 64 positions of a range, the section's last ones first: they have the most keys.
struct Piece {
  const RangeView* range;
  std::int64_t position;  // the first of 64
};
__device__ __forceinline__ Piece piece_of(const StepView& step, int index) {
  const int s = static_cast<int>(Section::prefill);
  for (int at = step.first_range[s + 1] - 1; at >= step.first_range[s]; --at) {
    const RangeView* const r = step.range + at;
    if (r->rows <= 0) continue;
    const int chunks = chunks_of(*r);
    if (index < chunks) return {r, (r->position / kDeltaChunk + (chunks - 1 - index)) * kDeltaChunk};
    index -= chunks;
  }
  return {nullptr, 0};
}

}  // namespace nibble::cuda
