// delta_sm70_prepare.cu: launches of delta_sm70_prepare.cuh, whose code tests/kernels_on_cpu compiles too.
#include "backends/cuda/ops/delta_sm70_prepare.cuh"

namespace nibble::cuda {

void delta_sm70_prepare(const Launch& to, const DeltaSm70Params& p) {
  using namespace sm70::preparing;
  const DeltaShape& d = p.state.shape;
  const int parts = (d.value_heads / d.key_heads + kHeads - 1) / kHeads;
  const dim3 grid(static_cast<unsigned>(most_records(to.max_rows, to.max_ranges)), static_cast<unsigned>(d.key_heads * parts));
  const auto kernel = d.key_dim == 32 ? sm70_prepare<32> : sm70_prepare<128>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  kernel<<<grid, kThreads, 0, to.stream>>>(p, parts);
}

}  // namespace nibble::cuda
