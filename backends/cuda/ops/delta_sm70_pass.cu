// delta_sm70_pass.cu: launches of delta_sm70_pass.cuh, whose code tests/kernels_on_cpu compiles too.
#include "backends/cuda/ops/delta_sm70_pass.cuh"

namespace nibble::cuda {

void delta_sm70_pass(const Launch& to, const DeltaSm70Params& p) {
  using namespace sm70::passing;
  const DeltaShape& d = p.state.shape;
  const dim3 grid(static_cast<unsigned>((d.value_dim + kColumns - 1) / kColumns), static_cast<unsigned>(d.value_heads),
                  static_cast<unsigned>(to.max_ranges));
  const auto kernel = d.key_dim == 32 ? sm70_pass<32> : sm70_pass<128>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  kernel<<<grid, kThreads, 0, to.stream>>>(p);
}

}  // namespace nibble::cuda
