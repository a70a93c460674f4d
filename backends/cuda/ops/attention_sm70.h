// attention_sm70.h: prefill rows of attention on sm_70's matrix units (core/numerics/attention_order.h): q, y and the pages
// are float32, as rows of f16 are around ops that touch a sequence.
#pragma once

#include "backends/cuda/ops/sequence.h"

namespace nibble::cuda {

struct AttentionSm70Params {
  const StepView* steps;
  const float* q;
  float* y;
  std::int64_t q_stride, y_stride;  // elements from row to row
  float scale;
  AttentionShape shape;
  const float *keys, *values;
  int parts;  // blocks for the heads of a kv head
};

// Shapes that num::attention_on_units() names; rows of q at multiples of 16 bytes, of y at multiples of 8.
void attention_sm70(const Launch& to, const AttentionArgs& args);
std::string attention_sm70_kernel();  // for StepStats

}  // namespace nibble::cuda
