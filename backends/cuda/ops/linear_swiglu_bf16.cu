// linear_swiglu_bf16.cu: linear_wgmma.cuh for bf16 weights of gate and up.
#include "backends/cuda/ops/linear_start.cuh"

namespace nibble::cuda {

cudaError_t start_swiglu_bf16(const Launch& to, int tile, const WgmmaParams& p) {
  return start_wgmma<WeightFormat::bf16, true>(to, tile, p);
}

}  // namespace nibble::cuda
