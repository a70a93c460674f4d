#include "backends/cpu/ops/any_linear.h"

#include "backends/cpu/ops/linear_bf16.h"
#include "backends/cpu/ops/linear_fused.h"

namespace nibble::cpu {

std::int64_t any_linear_workspace_bytes(Profile profile, const Kernels& kernels, int threads, std::int64_t max_rows,
                                        std::int64_t cols, const ActivationFormat& format) {
  if (profile == Profile::bf16) return linear_bf16_workspace_bytes(kernels, threads, max_rows, cols);
  if (profile != Profile::f32) return linear_fused_workspace_bytes(max_rows, cols);
  return format.kind == ActivationFormat::Kind::none ? 0 : linear_workspace_bytes(max_rows, cols);
}

void any_linear(Profile profile, const Kernels& kernels, Parallel& parallel, const LinearArgs& args) {
  if (profile == Profile::f32) return linear(kernels.isa, parallel, args);
  if (profile == Profile::bf16) return linear_bf16(kernels, parallel, args);
  linear_fused(profile, kernels.isa, parallel, args);
}

}  // namespace nibble::cpu
