// experts.h: launches of the ops of a mixture of experts but its linear layers. Contracts: core/ops/ops.h.
#pragma once

#include "backends/cuda/launch.h"

namespace nibble::cuda {

struct ExpertRouteArgs {
  View logits;  // [T, E] f32
  bool normalised;
  View weights;                                // [T, k] f32
  std::int32_t *experts, *order, *place;  // [T, k], [T * k], [T, k]
  std::int32_t* starts;                        // [E + 1]
};
void expert_route(const Launch& to, const ExpertRouteArgs& args);

struct ExpertCombineArgs {
  View x, weights;            // [T * k, H], [T, k] f32
  const std::int32_t* place;  // [T, k]
  View shared, shared_gate;   // [T, H], [T, 1] f32; data null: no shared expert
  View y;                     // [T, H] f32
};
void expert_combine(const Launch& to, const ExpertCombineArgs& args);

}  // namespace nibble::cuda
