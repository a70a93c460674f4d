// linear_swiglu_fp8.cu: linear_wgmma.cuh for fp8 weights of gate and up.
#include "backends/cuda/ops/linear_start.cuh"

namespace nibble::cuda {

cudaError_t start_swiglu_fp8(const Launch& to, int tile, const WgmmaParams& p) {
  return start_wgmma<WeightFormat::fp8_e4m3, true>(to, tile, p);
}

}  // namespace nibble::cuda
