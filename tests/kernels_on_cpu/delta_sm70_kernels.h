// delta_sm70_kernels.h: the kernels of delta_units_sm70() on the processor.
#pragma once

#include <cstddef>

#include "backends/cuda/state_view.h"
#include "backends/cuda/step_view.h"

namespace nibble::test {

struct DeltaSm70Run {
  const cuda::StepView* step;
  std::int64_t max_rows;
  std::int32_t max_ranges;
  float *qkv, *g, *beta, *y;
  std::int64_t qkv_stride, g_stride, y_stride;  // beta's: g's
  cuda::DeltaLayerView state;
  std::byte* records;
};
std::size_t record_bytes(const DeltaSm70Run& run);
void run_kernels(const DeltaSm70Run& run, unsigned seed);

}  // namespace nibble::test
