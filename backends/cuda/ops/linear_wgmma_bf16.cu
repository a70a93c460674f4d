// linear_wgmma_bf16.cu: linear_wgmma.cuh for bf16 weights.
#include "backends/cuda/ops/linear_start.cuh"

namespace nibble::cuda {

cudaError_t start_wgmma_bf16(const Launch& to, int tile, const WgmmaParams& p) {
  return start_wgmma<WeightFormat::bf16>(to, tile, p);
}

}  // namespace nibble::cuda
