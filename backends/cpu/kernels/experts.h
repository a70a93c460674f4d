// experts.h: inner loops of a mixture of experts; contracts: core/ops/ops.h.
#pragma once

#include <cstdint>

#include "backends/cpu/isa.h"

namespace nibble::cpu {

struct ExpertKernels {
  // One row of ExpertRoute: [experts] logits to [k] weights and ids.
  void (*route)(const float* logits, std::int32_t experts, std::int32_t k, bool normalised, float* weights,
                std::int32_t* ids);
  // y = fma(w, x, y)
  void (*add_scaled)(const float* x, float w, std::int64_t n, float* y);
};

NIBBLE_ON_EACH_ISA(const ExpertKernels& expert_kernels();)

}  // namespace nibble::cpu
