// attention_bench.h: how fast is the attention of one layer by itself?
#pragma once

#include "backends/backend.h"

namespace nibble::cuda {

AttentionBench bench_attention(const BackendOptions& options, const AttentionBenchOptions& how);

}  // namespace nibble::cuda
