// pack_bench.h: how long norms and SwiGLU take by themselves, with Quantize behind them, and as one op.
#pragma once

#include "backends/backend.h"

namespace nibble::cpu {

PackBench bench_pack(const BackendOptions& options, const PackBenchOptions& how);

}  // namespace nibble::cpu
