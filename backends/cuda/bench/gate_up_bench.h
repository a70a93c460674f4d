// gate_up_bench.h: how long the linear layers of gate and up take, with SwiGLU behind them, and as one op.
#pragma once

#include "backends/backend.h"

namespace nibble::cuda {

GateUpBench bench_gate_up(const BackendOptions& options, const GateUpBenchOptions& how);

}  // namespace nibble::cuda
