// bf16_sums.h: segments and totals of profile bf16, in buffers [panels][height, 16] of which the first `rows` are used.
#pragma once

#include "backends/cpu/kernels/linear_bf16.h"
#include "backends/cpu/kernels/linear_finish.h"

namespace nibble::cpu::NIBBLE_ISA {

NIBBLE_INLINE std::int64_t end_of_segment(const Bf16Block& b, std::int64_t begin) {
  const std::int64_t cols = b.linear.weight->cols;
  return cols - begin < b.chain ? cols : begin + b.chain;
}

static inline void clear_sums(const Bf16Block& b, std::int64_t height, std::int64_t panels, float* sums) {
  for (std::int64_t p = 0; p < panels; ++p) {
    std::memset(sums + p * height * kPanelRows, 0, static_cast<std::size_t>(b.linear.rows) * kPanelRows * sizeof(float));
  }
}

static inline void add_sums(const Bf16Block& b, std::int64_t height, std::int64_t first_panel, std::int64_t panels,
                            std::int64_t segment, const float* sums, float* totals) {
  for (std::int64_t p = 0; p < panels; ++p) {
    for (std::int64_t r = 0; r < b.linear.rows; ++r) {
      const std::int64_t at = (p * height + r) * kPanelRows;
      store(totals + at, add_segment(b.linear, first_panel + p, segment, r, load(sums + at), load(totals + at)));
    }
  }
}

static inline void finish_sums(const Bf16Block& b, std::int64_t height, std::int64_t first_panel, std::int64_t panels,
                               const float* totals) {
  for (std::int64_t p = 0; p < panels; ++p) {
    for (std::int64_t r = 0; r < b.linear.rows; ++r) {
      finish(b.linear, first_panel + p, r, load(totals + (p * height + r) * kPanelRows));
    }
  }
}

}  // namespace nibble::cpu::NIBBLE_ISA
