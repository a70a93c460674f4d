// delta_bench.h: how long the delta rule takes by itself: prompts and decode steps.
#pragma once

#include "backends/backend.h"

namespace nibble::cuda {

DeltaBench bench_delta(const BackendOptions& options, const DeltaBenchOptions& how);

}  // namespace nibble::cuda
