// linear_sm120.cu: y = x w^T on the block-scaled FP4 unit, weight and activations NVFP4
//   x codes [T, K / 2], scales [T, K / 16] e4m3; the weight is an image for the FP4 unit; y [T, N] f32 or bf16
//   map   a warp = 16 rows of the weight (a unit's; the instruction's A) by 8 rows of x; block = 4 warps
//   loop  64 columns an instruction, k ascending, operands straight from memory
//   sums  a segment in one accumulator, segments in order in the same lane             parity: mirrored
//   cost  weights are read once for 8 rows: simple and right, not tuned
//   needs nothing; any arch, by emulation outside 12.0
// Codes and scales lie in the image as the instruction wants them (CodeOrder::k64). The unit's scales have no sign:
// bit 7 is cleared.
#include <cstdint>

#include "backends/cuda/device/mma_fp4.cuh"
#include "backends/cuda/ops/linear_groups.cuh"

namespace nibble::cuda {
namespace {

constexpr int kTokens = 8, kThreads = 128;
static_assert(kThreads / 32 * kUnitRows == kTileRows);

struct WeightOperand {
  uint4 codes;
  std::uint32_t scale;
};
__device__ __forceinline__ WeightOperand weight_operand(const WeightImage& w, std::int64_t n0, int tile, int lane) {
  const std::int64_t unit = unit_index(n0, std::int64_t{tile} * kTileCols, w.padded_cols / kTileCols);
  WeightOperand a;
  a.codes = __ldg(reinterpret_cast<const uint4*>(w.codes + unit * unit_bytes(WeightFormat::nvfp4)) + lane);
  const auto* scales = reinterpret_cast<const std::uint32_t*>(w.scales + unit * kUnitScaleBytes);
  a.scale = __ldg(scales + lane / 4 + lane % 2 * 8) & 0x7F7F7F7Fu;
  return a;
}

struct InputOperand {
  std::uint32_t codes[2], scale;
};
// Of row `row`; beyond the weight's columns codes and scales are zero.
__device__ __forceinline__ InputOperand input_operand(const LinearParams& p, std::int64_t row, int tile,
                                                      int lane) {
  const std::int64_t k0 = std::int64_t{tile} * kTileCols, blocks = p.weight.cols / 16;
  const int q = lane % 4;
  InputOperand b{};
  const std::byte* scales = p.x_scales + row * p.scale_stride;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (k0 / 16 + i < blocks) {
      b.scale |= static_cast<std::uint32_t>(scales[k0 / 16 + i]) << (8 * i);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t k = k0 + 32 * half + 8 * q;
    if (k >= p.weight.cols) continue;
    const std::byte* codes = p.x + row * p.x_stride + k / 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) b.codes[half] |= static_cast<std::uint32_t>(codes[i]) << (8 * i);
  }
  b.scale &= 0x7F7F7F7Fu;
  return b;
}

template <class P>
__global__ __launch_bounds__(kThreads) void sm120_kernel(P p) {
  std::int64_t rows, first;
  if (!rows_of_block<kTokens>(p, rows, first)) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t n0 = static_cast<std::int64_t>(blockIdx.x) * kTileRows + warp * kUnitRows;
  const std::int64_t token = first + lane / 4;  // whose operands this lane feeds
  const std::int64_t from = source_row(p, token, token < rows);

  float total[4] = {};
  for (int segment = 0; segment < p.segments; ++segment) {
    const int begin = segment * p.segment_tiles;
    const int end = begin + p.segment_tiles < p.k_tiles ? begin + p.segment_tiles : p.k_tiles;
    float sum[4] = {};
    for (int tile = begin; tile < end; ++tile) {
      const WeightOperand a = weight_operand(p.weight, n0, tile, lane);
      const InputOperand b = token < rows ? input_operand(p, from, tile, lane) : InputOperand{};
      const std::uint32_t codes[4] = {a.codes.x, a.codes.y, a.codes.z, a.codes.w};
      mma_m16n8k64_nvfp4<kFp4Path>(sum, codes, b.codes, a.scale, b.scale);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) total[i] = num::add(total[i], sum[i]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::int64_t t = first + result_col(lane, i), n = n0 + result_row(lane, i);
    if (t < rows && n < p.weight.rows) finish_row(p, t, n, total[i]);
  }
}

template <class P>
void launch(const Launch& to, const P& p, std::int64_t tiles) {
  const dim3 grid(static_cast<unsigned>(p.weight.padded_rows / kTileRows), static_cast<unsigned>(tiles));
  sm120_kernel<<<grid, kThreads, 0, to.stream>>>(p);
}

}  // namespace

void launch_sm120(const Launch& to, const LinearParams& p) {
  launch(to, p, (to.max_of(p.rows) + kTokens - 1) / kTokens);
}
void launch_sm120(const Launch& to, const GroupedParams& p) { launch_groups<kTokens>(to, p, launch<GroupedParams>); }

}  // namespace nibble::cuda
