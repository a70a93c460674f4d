// grouped_bench.h: GroupedLinear by itself, beside its plain kernel. Contract: nibble/op_bench.h.
#pragma once

#include "backends/backend.h"

namespace nibble::cuda {

GroupedBench bench_grouped(const BackendOptions& options, const GroupedBenchOptions& how);

}  // namespace nibble::cuda
