// delta_front.h: a prompt's rows between projection and delta rule in one pass.
#pragma once

#include "backends/cuda/ops/sequence.h"

namespace nibble::cuda {

// Whether delta_front() computes these rows.
bool delta_front_serves(const DeltaConvArgs& a);
// DeltaConv's rows, but for the ring, and with `gates` (null: none) the same rows of DeltaGates, in one launch.
void delta_front(const Launch& to, const DeltaConvArgs& a, const DeltaGatesArgs* gates);
// DeltaConv of a prompt with them.
void delta_conv_and_gates(const Launch& to, const DeltaConvArgs& a, const DeltaGatesArgs& gates);

}  // namespace nibble::cuda
