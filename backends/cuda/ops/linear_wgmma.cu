// linear_wgmma.cu: which tile of linear_wgmma.cuh serves, and the tensor map of x.
#include "backends/cuda/ops/linear_schedule.cuh"

#include <algorithm>

#include "backends/cuda/check.h"
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

// Boxes of 64 columns and `tokens` rows of x [rows, cols].
CUtensorMap map_of(const LinearParams& p, std::int64_t rows, int tokens) {
  const cuuint64_t size[2] = {static_cast<cuuint64_t>(p.weight.cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t stride[1] = {static_cast<cuuint64_t>(p.x_stride) * 2};
  const cuuint32_t box[2] = {kTileCols, static_cast<cuuint32_t>(tokens)}, step[2] = {1, 1};
  CUtensorMap map{};
  const EncodeTiled encode = encode_tiled();
  const CUresult r = encode == nullptr
                         ? CUDA_ERROR_NOT_FOUND
                         : encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<std::byte*>(p.x), size, stride,
                                  box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS) {
    throw Error(ErrorCode::internal, "[cuda] linear: the driver made no tensor map, error " + std::to_string(r));
  }
  return map;
}

struct Choice {
  int tokens;
  Totals totals;
  bool split;
  std::int64_t units;
};
// For a class of `rows` rows. Larger tiles read fewer bytes for a product, smaller ones keep every multiprocessor
// busy: relative times of a unit of K, from measurements, and how many rounds of units there are.
Choice choose(const LinearParams& p, std::int64_t rows, int multiprocessors) {
  const std::int64_t row_tiles = (p.weight.padded_rows + kWgmmaRows - 1) / kWgmmaRows;
  const auto tiles = [&](int tokens) { return row_tiles * ((rows + tokens - 1) / tokens); };
  const bool blocks = p.weight.block != nullptr, one = p.segments == 1 && !blocks;
  // A sum of each unit lies in two areas.
  const auto can_split = [&](int tokens) {
    const std::int64_t slot = kWgmmaRows * tokens * 4;
    const bool few = tokens <= 32 || tiles(tokens) < multiprocessors;
    return !one && !blocks && few && tiles(tokens) * p.segments * slot <= std::int64_t{multiprocessors} * 2 * kAreaPerProcessor;
  };
  const auto units = [&](int tokens) { return tiles(tokens) * (can_split(tokens) ? p.segments : 1); };
  for (const int few : {8, 16, 32, 64}) {
    if (rows > few) continue;
    const bool split = can_split(few);
    return {few, one || split ? Totals::none : Totals::registers, split, units(few)};
  }
  if (blocks || rows <= 128) return {128, Totals::registers, can_split(128), units(128)};
  const auto time = [&](int tokens, double unit) {
    const double rounds = static_cast<double>(units(tokens)) / multiprocessors;
    return unit / (can_split(tokens) ? p.segments : 1) * std::max(1.0, rounds);
  };
  if (time(128, 0.64) < time(256, 1)) return {128, Totals::registers, can_split(128), units(128)};
  const bool split = can_split(256);
  return {256, one || split ? Totals::none : Totals::memory, split, units(256)};
}

}  // namespace

bool wgmma_has_maps() { return encode_tiled() != nullptr; }

std::uint64_t wgmma_sums_bytes(int multiprocessors) {
  return kFlagBytes + static_cast<std::uint64_t>(multiprocessors) * kSumsPerProcessor;
}

void launch_wgmma(const Launch& to, const LinearParams& l) {
  const std::int64_t rows = to.max_of(l.rows);
  const Choice choice = choose(l, rows, to.multiprocessors);
  const WgmmaParams p{l, to.sums, choice.split, choice.units, to.multiprocessors};
  const CUtensorMap map = map_of(l, rows, choice.tokens);
  const auto start = l.weight.format == WeightFormat::nvfp4      ? start_wgmma_nvfp4
                     : l.weight.format == WeightFormat::fp8_e4m3 ? start_wgmma_fp8
                                                                 : start_wgmma_bf16;
  check(start(to, choice.tokens, choice.totals, map, p), "linear");
}

}  // namespace nibble::cuda
