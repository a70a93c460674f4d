// linear_bench.h: Linear by itself, beside cuBLAS. Contract: nibble/op_bench.h.
#pragma once

#include "backends/backend.h"

namespace nibble::cuda {

LinearBench bench_linear(const BackendOptions& options, const LinearBenchOptions& how);

}  // namespace nibble::cuda
