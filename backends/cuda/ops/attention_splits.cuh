// attention_splits.cuh: what attention_decode.cu and attention_combine.cu share: splits of a sequence's keys.
#pragma once

#include "backends/cuda/device/gated.cuh"
#include "backends/cuda/device/sequence.cuh"
#include "backends/cuda/launch_early.h"
#include "backends/cuda/ops/attention_units.h"
#include "backends/cuda/ops/linear_schedule.cuh"
#include "core/numerics/attention_order.h"

namespace nibble::cuda {

constexpr int kSplit = num::kAttentionSplit;

struct SplitParams {
  const StepView* steps;
  Section section;
  TypedRows<Bf16> q, y;
  float scale;
  AttentionShape shape;
  const std::byte *keys, *values;           // bf16, or codes of fp8
  const float *key_scales, *value_scales;  // of these, [pages, kv_heads, 64]
  float* parts;  // of a slot and kv head: O [most, Dim], then m and l [most, 2]
  int most;      // queries of a range
  int tiles;     // of 16 of those
  HeadGates<Bf16> gates;
};
__device__ __forceinline__ int splits_of(const RangeView& r) { return static_cast<int>((r.position + r.rows - 1) / kSplit) + 1; }

// Code that is compiled on the card, from PTX, has no wait for the launches before.
template <class Kernel>
void start_early(Kernel kernel, dim3 grid, int threads, int bytes, cudaStream_t stream, const SplitParams& p) {
  if (has_wgmma() || has_fp4()) {
    launch_early(kernel, grid, static_cast<unsigned>(threads), static_cast<unsigned>(bytes), stream, p);
  } else {
    kernel<<<grid, threads, bytes, stream>>>(p);
  }
}

// Of rows whose sequence has several splits, behind what computes these.
void combine_splits(const Launch& to, const AttentionArgs& args, const SplitParams& params);

}  // namespace nibble::cuda
