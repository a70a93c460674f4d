// linear_group_bf16.cu: linear_group.cuh for bf16 weights.
#include "backends/cuda/ops/linear_group.cuh"

namespace nibble::cuda {

cudaError_t start_group_bf16(const Launch& to, int tile, const GroupedParams& p, std::int64_t units) {
  return start_group<WeightFormat::bf16>(to, tile, p, units);
}

}  // namespace nibble::cuda
