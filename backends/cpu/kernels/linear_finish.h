// linear_finish.h: what both loops of Linear share: how a segment enters the total, how a total
// leaves.
#pragma once

#include "backends/cpu/kernels/linear.h"
#include "backends/cpu/simd.h"

namespace nibble::cpu::NIBBLE_ISA {

void few_rows(const LinearBlock& block, std::int64_t panel_begin, std::int64_t panel_end);
void few_rows_in_place(const LinearBlock& block, std::int64_t panel_begin, std::int64_t panel_end);
void many_rows(const LinearBlock& block, std::int64_t panel_begin, std::int64_t panel_end);

NIBBLE_INLINE F32x16 add_segment(const LinearBlock& b, std::int64_t panel, std::int64_t segment,
                                 std::int64_t row, F32x16 sum, F32x16 total) {
  if (b.group_scale != nullptr) sum = mul(sum, set1(b.group_scale[row * b.group_stride + segment]));
  const PackedWeight& w = *b.weight;
  if (w.block == nullptr) return add(total, sum);
  const std::int64_t across = (w.cols + kScaleBlock - 1) / kScaleBlock;
  return fma(sum, set1(w.block[panel * kPanelRows / kScaleBlock * across + segment]), total);
}

NIBBLE_INLINE void finish(const LinearBlock& b, std::int64_t panel, std::int64_t row,
                          F32x16 total) {
  const float scale = b.row_scale != nullptr ? b.row_scale[row] : b.tensor_scale;
  const std::int64_t n = panel * kPanelRows;
  const F32x16 y = mul(mul(total, mul(load(b.weight->alpha + n), set1(b.alpha_unit))), set1(scale));
  float* out = b.y + row * b.y_stride + n;
  if (n + kPanelRows <= b.weight->rows) {
    store(out, y);
  } else {
    float last[kPanelRows];
    store(last, y);
    for (std::int64_t i = 0; i < b.weight->rows - n; ++i) out[i] = last[i];
  }
}

}  // namespace nibble::cpu::NIBBLE_ISA
