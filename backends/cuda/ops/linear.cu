// linear.cu: which kernel of Linear serves. All give the same bits; the program class's largest number of
// rows decides, never the step's own.
#include <cuda_runtime.h>

#include <type_traits>

#include "backends/cuda/ops/linear_parts.cuh"

namespace nibble::cuda {
namespace {

constexpr std::int64_t kFewRows = 8;

// Compiled with the kernels, so that its attributes tell which path they took.
__global__ void path_probe() {}

bool aligned_for(const LinearArgs& a) {
  const auto address = reinterpret_cast<std::uintptr_t>(a.x.data);
  const std::int64_t element = a.x.dtype == DType::bf16 ? 2 : 1;
  return address % static_cast<std::uintptr_t>(8 * element) == 0 && a.x.stride % 8 == 0;
}

}  // namespace

void linear(const Launch& to, const LinearArgs& a) {
  const std::int64_t rows = to.max_of(a.y.rows);
  if (rows <= 0) return;
  const bool quantised = a.format.kind != ActivationKind::none;
  const bool blocks =
      a.weight.block != nullptr || a.format.kind == ActivationKind::fp8_token_group128;
  const num::Segments segments = num::linear_segments(a.weight.rows, a.weight.cols, blocks);
  LinearParams p;
  p.step = to.step;
  p.weight = a.weight;
  p.x = a.x.data;
  p.x_stride = a.x.stride;
  p.x_scales = a.x_scales.data;
  p.scale_stride = a.x_scales.stride;
  p.kind = a.format.kind;
  p.aligned = aligned_for(a);
  const bool is_static = a.format.kind == ActivationKind::nvfp4_static ||
                         a.format.kind == ActivationKind::fp8_tensor_static;
  p.static_scale = quantised && is_static ? a.format.scale : 1.0f;
  p.rows = a.y.rows;
  p.y = a.y.data;
  p.y_stride = a.y.stride;
  p.y_bf16 = a.y.dtype == DType::bf16;
  p.k_tiles = static_cast<int>(a.weight.padded_cols / kTileCols);
  p.segment_tiles = segments.length / kTileCols;
  p.segments = segments.count;
  if (rows <= kFewRows) {
    launch_few(to, p);
  } else {
    launch_tile(to, p);
  }
}

const char* linear_kernel(const LinearArgs&) {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, path_probe) == cudaSuccess &&
      native_mma(attributes.ptxVersion)) {
    return "mma.m16n8k16";
  }
  static_cast<void>(cudaGetLastError());
  return "emulated mma.m16n8k16";
}

}  // namespace nibble::cuda
