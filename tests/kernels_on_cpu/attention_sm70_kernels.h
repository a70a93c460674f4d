// attention_sm70_kernels.h: the kernel of attention_sm70() on the processor.
#pragma once

#include "backends/cuda/state_view.h"
#include "backends/cuda/step_view.h"

namespace nibble::test {

struct AttentionSm70Run {
  const cuda::StepView* step;
  std::int64_t max_rows;
  std::int32_t max_ranges;
  const float* q;
  float* y;
  std::int64_t q_stride, y_stride;
  float scale;
  AttentionShape shape;
  const float *keys, *values;
};
void run_kernel(const AttentionSm70Run& run, unsigned seed);

}  // namespace nibble::test
