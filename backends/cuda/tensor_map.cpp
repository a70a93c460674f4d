#include "backends/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <string>

#include "nibble/error.h"

namespace nibble::cuda {
namespace {

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                 const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                 CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* at = nullptr;
    cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
    const cudaError_t e =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &at, 12000, cudaEnableDefault, &found);
#else
    const cudaError_t e = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &at, cudaEnableDefault, &found);
#endif
    return e == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<EncodeTiled>(at) : nullptr;
  }();
  return function;
}

}  // namespace

bool has_tensor_maps() { return encode_tiled() != nullptr; }

CUtensorMap tensor_map(const MappedMatrix& m) {
  const bool tiles = m.box_tiles > 1;
  const cuuint64_t size[3] = {static_cast<cuuint64_t>(tiles ? m.box_cols : m.cols), static_cast<cuuint64_t>(m.rows),
                              static_cast<cuuint64_t>(m.cols / m.box_cols)};
  const cuuint64_t stride[2] = {static_cast<cuuint64_t>(m.stride),
                                static_cast<cuuint64_t>(m.box_cols) * static_cast<cuuint64_t>(m.element_bytes)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(m.box_cols), static_cast<cuuint32_t>(m.box_rows),
                             static_cast<cuuint32_t>(m.box_tiles)};
  const cuuint32_t step[3] = {1, 1, 1};
  CUtensorMap map{};
  const EncodeTiled encode = encode_tiled();
  const CUresult r = encode == nullptr
                         ? CUDA_ERROR_NOT_FOUND
                         : encode(&map, m.type, tiles ? 3 : 2, const_cast<std::byte*>(m.data), size, stride, box, step,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE, m.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS) {
    throw Error(ErrorCode::internal, "[cuda] the driver made no tensor map, error " + std::to_string(r));
  }
  return map;
}

}  // namespace nibble::cuda
