// linear_group_nvfp4.cu: linear_group.cuh for nvfp4 weights.
#include "backends/cuda/ops/linear_group.cuh"

namespace nibble::cuda {

cudaError_t start_group_nvfp4(const Launch& to, int tile, const GroupedParams& p, std::int64_t units) {
  return start_group<WeightFormat::nvfp4>(to, tile, p, units);
}

}  // namespace nibble::cuda
