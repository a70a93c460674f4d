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

// Segments' sums become totals, and totals y. One segment's sums are the totals (but for the +0 that they are added to),
// so that only weights and activations with scales along K keep both.
class Totals {
 public:
  Totals(const Bf16Block& b, std::int64_t height, std::int64_t first_panel, std::int64_t panels, float* sums, float* totals)
      : b_(b), height_(height), first_(first_panel), panels_(panels), sums_(sums), totals_(totals) {
    if (several()) clear_sums(b, height, panels, totals);
  }
  void take(std::int64_t segment) const {
    if (!several()) return;
    for (std::int64_t p = 0; p < panels_; ++p) {
      for (std::int64_t r = 0; r < b_.linear.rows; ++r) {
        const std::int64_t at = (p * height_ + r) * kPanelRows;
        store(totals_ + at, add_segment(b_.linear, first_ + p, segment, r, load(sums_ + at), load(totals_ + at)));
      }
    }
  }
  void finish() const {
    for (std::int64_t r = 0; r < b_.linear.rows; ++r) {
      for (std::int64_t p = 0; p < panels_; ++p) {
        const std::int64_t at = (p * height_ + r) * kPanelRows;
        const F32x16 total = several() ? load(totals_ + at)
                                       : add_segment(b_.linear, first_ + p, 0, r, load(sums_ + at), zero());
        NIBBLE_ISA::finish(b_.linear, first_ + p, r, total);
      }
    }
  }

 private:
  bool several() const { return b_.chain < b_.linear.weight->cols; }

  const Bf16Block& b_;
  std::int64_t height_, first_, panels_;
  float *sums_, *totals_;
};

// All segments of panels whose sums begin at zero in scratch, which has room for two buffers of `sums_size` floats.
template <class Segment>
void sum_segments(const Bf16Block& b, std::int64_t height, std::int64_t panel_begin, std::int64_t panel_end,
                  std::int64_t sums_size, std::byte* scratch, const Segment& segment) {
  auto* const sums = reinterpret_cast<float*>(scratch);
  const std::int64_t panels = panel_end - panel_begin;
  const Totals totals(b, height, panel_begin, panels, sums, sums + sums_size);
  for (std::int64_t begin = 0, index = 0; begin < b.linear.weight->cols; begin += b.chain, ++index) {
    clear_sums(b, height, panels, sums);
    segment(b, panel_begin, panel_end, begin, end_of_segment(b, begin), sums);
    totals.take(index);
  }
  totals.finish();
}

}  // namespace nibble::cpu::NIBBLE_ISA
