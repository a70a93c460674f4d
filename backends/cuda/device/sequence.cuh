// sequence.cuh: finding a range and its delta-net state on the device.
#pragma once

#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/state_view.h"

namespace nibble::cuda {

// The section's range number `index`, or null: not in this step, or without rows.
__device__ __forceinline__ const RangeView* section_range(const StepView& step, Section section,
                                                          int index) {
  const int s = static_cast<int>(section), at = step.first_range[s] + index;
  if (at >= step.first_range[s + 1]) return nullptr;
  const RangeView* r = step.range + at;
  return r->rows > 0 ? r : nullptr;
}

// Most rows that the section can have: one a sequence, or as many as can be taken back, or all.
inline std::int64_t section_max_rows(const Launch& to, Section section, std::int64_t records) {
  if (section == Section::prefill) return to.max_rows;
  const std::int64_t rows =
      section == Section::decode ? std::int64_t{to.max_ranges} : to.max_ranges * records;
  return rows < to.max_rows ? rows : to.max_rows;
}

__device__ __forceinline__ int key_head_of(const DeltaShape& d, int value_head) {
  return value_head / (d.value_heads / d.key_heads);
}

// S of one head: [key_dim, value_dim].
__device__ __forceinline__ float* state_of(const DeltaLayerView& l, int slot, int value_head) {
  return l.s + (std::int64_t{slot} * l.shape.value_heads + value_head) * l.shape.key_dim *
                   l.shape.value_dim;
}

// Records of one value head, oldest first: key [key_dim], u [value_dim], decay.
struct RecordsView {
  float *key, *u, *decay;
  std::int64_t key_stride, u_stride, decay_stride;
};
__device__ __forceinline__ RecordsView records_of(const DeltaLayerView& l, int slot, int half,
                                                  int value_head) {
  const DeltaShape& d = l.shape;
  const std::int64_t first = (std::int64_t{slot} * 2 + half) * l.records;
  const std::int64_t keys = d.key_channels(), values = d.value_channels();
  return {l.key + first * keys + std::int64_t{key_head_of(d, value_head)} * d.key_dim,
          l.u + first * values + std::int64_t{value_head} * d.value_dim,
          l.decay + first * d.value_heads + value_head,
          keys,
          values,
          d.value_heads};
}

// S[k, v] = x with the first `count` records taken.
__device__ __forceinline__ float fold(const RecordsView& r, int count, int k, int v, float x) {
  for (int i = 0; i < count; ++i) {
    x = num::fma(r.key[i * r.key_stride + k], r.u[i * r.u_stride + v],
                 num::mul(r.decay[i * r.decay_stride], x));
  }
  return x;
}

// The ring's row of a position: [channels].
template <class T>
__device__ __forceinline__ T* conv_row(const DeltaLayerView& l, int slot, std::int64_t position) {
  return reinterpret_cast<T*>(l.conv) +
         (std::int64_t{slot} * l.conv_rows + position % l.conv_rows) * l.shape.channels();
}

}  // namespace nibble::cuda
