// linear_fp4.cu: which tile of linear_fp4.cuh serves, and the tensor maps of x.
#include "backends/cuda/ops/linear_fp4.cuh"

#include <algorithm>

#include "backends/cuda/check.h"
#include "backends/cuda/tensor_map.h"

namespace nibble::cuda {
namespace {

//                      rows tokens warps  totals blocks
using Fp4T32 = Fp4Shape<64, 32, 4, 1, true, 2>;
using Fp4T64 = Fp4Shape<64, 64, 2, 2, true, 2>;
using Fp4T128 = Fp4Shape<64, 128, 2, 2, true, 2>;
using Fp4Wide = Fp4Shape<128, 128, 4, 2, true, 1>;
using Fp4Widest = Fp4Shape<128, 256, 2, 4, false, 1>;  // registers hold no totals beside these sums

template <class S>
std::int64_t tiles_of(const LinearParams& l, std::int64_t rows) {
  return (l.weight.padded_rows + S::kRows - 1) / S::kRows * ((rows + S::kTokens - 1) / S::kTokens);
}

template <class S>
cudaError_t start(const Launch& to, const LinearParams& l, std::int64_t rows) {
  const cudaError_t e =
      cudaFuncSetAttribute(linear_fp4<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  if (e != cudaSuccess) return e;
  const CUtensorMap codes = tensor_map({CU_TENSOR_MAP_DATA_TYPE_UINT8, l.x, l.weight.cols / 2, rows, l.x_stride, 64,
                                        S::kTokens, CU_TENSOR_MAP_SWIZZLE_64B});
  const CUtensorMap scales = tensor_map({CU_TENSOR_MAP_DATA_TYPE_UINT8, l.x_scales, l.weight.cols / 16, rows,
                                         l.scale_stride, 16 * S::kScaleChunks, S::kTokens,
                                         S::kScaleChunks == 4 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_32B});
  std::int64_t blocks = tiles_of<S>(l, rows);
  if (to.multiprocessors > 0) blocks = std::min(blocks, std::int64_t{to.multiprocessors} * S::kBlocks);
  linear_fp4<S><<<static_cast<unsigned>(blocks), S::kThreads, S::kSharedBytes, to.stream>>>(codes, scales, l);
  return cudaGetLastError();
}

cudaError_t start_best(const Launch& to, const LinearParams& l, std::int64_t rows) {
  if (rows <= 32) return start<Fp4T32>(to, l, rows);
  if (rows <= 64) return start<Fp4T64>(to, l, rows);
  // Time of a tile against the largest one's matrix work: its own, or what brings its bytes while every
  // multiprocessor has one. Larger tiles read fewer bytes for a product, smaller ones keep all busy. Estimated from
  // figures of others (docs/paper_estimates.md), not measured.
  const auto time = [&](std::int64_t tiles, double matrix, double feed) {
    const std::int64_t at_once = std::max(to.multiprocessors, 1), rounds = (tiles + at_once - 1) / at_once;
    const double busy = std::min(1.0, static_cast<double>(tiles) / static_cast<double>(at_once));
    return static_cast<double>(rounds) * (std::max(matrix, feed * busy) + 0.02);
  };
  const double t128 = time(tiles_of<Fp4T128>(l, rows), 0.25, 0.43), wide = time(tiles_of<Fp4Wide>(l, rows), 0.5, 0.53);
  const bool widest = l.segments == 1 && rows > 128;
  if (widest && time(tiles_of<Fp4Widest>(l, rows), 1, 0.86) <= std::min(t128, wide)) {
    return start<Fp4Widest>(to, l, rows);
  }
  return t128 < wide ? start<Fp4T128>(to, l, rows) : start<Fp4Wide>(to, l, rows);
}

}  // namespace

void launch_fp4(const Launch& to, const LinearParams& l) { check(start_best(to, l, to.max_of(l.rows)), "linear"); }

}  // namespace nibble::cuda
