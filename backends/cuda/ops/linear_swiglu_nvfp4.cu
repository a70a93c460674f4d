// linear_swiglu_nvfp4.cu: linear_wgmma.cuh for nvfp4 weights of gate and up.
#include "backends/cuda/ops/linear_start.cuh"

namespace nibble::cuda {

cudaError_t start_swiglu_nvfp4(const Launch& to, int tile, const WgmmaParams& p) {
  return start_wgmma<WeightFormat::nvfp4, true>(to, tile, p);
}

}  // namespace nibble::cuda
