// rowwise.h: inner loops of the ops that see one row (or one head of it) at a time. Outputs may be
// the inputs themselves, but may not overlap them in part.
#pragma once

#include <cstdint>

#include "backends/cpu/isa.h"

namespace nibble::cpu {

struct RowwiseKernels {
  void (*add)(const float* a, const float* b, std::int64_t n, float* y);
  void (*swiglu)(const float* gate, const float* up, std::int64_t n, float* y);
  void (*sigmoid_gate)(const float* x, const float* gate, std::int64_t n, float* y);
  void (*rms_norm)(const float* x, const float* w, std::int64_t n, float eps, float* y);
  void (*gated_rms_norm)(const float* x, const float* z, const float* w, std::int64_t n, float eps,
                         float* y);
};

NIBBLE_ON_EACH_ISA(const RowwiseKernels& rowwise_kernels();)

}  // namespace nibble::cpu
