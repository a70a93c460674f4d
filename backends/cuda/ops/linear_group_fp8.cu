// linear_group_fp8.cu: linear_group.cuh for fp8 weights.
#include "backends/cuda/ops/linear_group.cuh"

namespace nibble::cuda {

cudaError_t start_group_fp8(const Launch& to, int tile, const GroupedParams& p, std::int64_t units) {
  return start_group<WeightFormat::fp8_e4m3>(to, tile, p, units);
}

}  // namespace nibble::cuda
