// step_view.h: one step as kernels see it. The host writes it in one block, header first, and one
// copy brings it to the device; every pointer is a device address inside that block. Kernels read
// all counts from here, so a launch (or a captured graph) is the same for any batch of its class.
#pragma once

#include <cstdint>

namespace nibble::cuda {

// As core/schedule/batch.h's Range; half and pending are the slot's cursor before this step.
struct RangeView {
  std::int32_t section;  // Section
  std::int32_t slot, first_row, rows;
  std::int64_t position;
  std::int32_t keep;     // records that are folded into the state before the first row
  std::int32_t half;     // of the record ring that holds them; this step's records go to the other
  std::int32_t pending;  // records in that half
  std::int32_t first_page;  // into StepView::pages
};

struct SampleView {  // as SampleParams
  float temperature, top_p, min_p, repetition_penalty;
  std::int32_t top_k, slot;
  std::uint64_t seed;
  std::int64_t position;
  std::int32_t row, last_row;  // the output's row, and the last row of its range
};

struct StepView {
  std::int32_t rows, outputs, ranges, taken_back;
  std::int32_t first_range[4], first_row[4];  // of each section; [3] is the end
  const std::int32_t* tokens;                 // [rows]
  const RangeView* range;                     // [ranges], in row order
  const std::int32_t* range_of_row;           // [rows]
  const std::int32_t* pages;
  const std::int32_t* output_rows;  // [outputs]
  const SampleView* sampling;       // [outputs], classes that sample
  const std::int32_t* targets;      // [outputs], class score
  const std::int32_t* taken_slot;   // [taken_back]
  const std::int32_t* taken_token;  // [taken_back]
  std::int32_t count[4];            // rows of each sort, by Rows
};

inline void count_rows(StepView& s, std::int32_t experts_per_token) {
  const std::int32_t counts[] = {s.rows, s.outputs, s.rows * experts_per_token, 1};
  for (int r = 0; r < 4; ++r) s.count[r] = counts[r];
}

}  // namespace nibble::cuda
