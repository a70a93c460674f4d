// linear_few.cu: y = x w^T for up to eight rows
//   map    block = 16 weight rows x 8 rows of x; a warp takes whole segments of K, warps side by side
//   loop   kAhead units of 64 columns a turn, all their loads issued first; x straight from memory (cached)
//   sums   a segment in one warp, k ascending; the first warp adds the segments of a round in order
//   cost   weights are read once -> bandwidth bound
#include <algorithm>
#include <type_traits>

#include "backends/cuda/ops/linear_groups.cuh"

namespace nibble::cuda {
namespace {

constexpr int kMaxWarps = 8, kAhead = 4, kTokens = 8;

// Columns k and k + 1 (k even) of one row of x, as operands8.
__device__ __forceinline__ std::uint32_t operands2(const LinearParams& p, std::int64_t row,
                                                   std::int64_t k) {
  const std::int64_t cols = p.weight.cols;
  if (k >= cols) return 0;
  const bool both = k + 1 < cols;
  if (p.kind == ActivationKind::nvfp4_static) {
    const auto two = static_cast<std::uint32_t>(p.x[row * p.x_stride + k / 2]);
    const auto scale = static_cast<std::uint32_t>(p.x_scales[row * p.scale_stride + k / 16]);
    return e2m1_pair<0>((two & 15u) | (two >> 4) << 16, e4m3_twice(scale));
  }
  if (p.kind == ActivationKind::none) {
    const auto* x = reinterpret_cast<const std::uint16_t*>(p.x) + row * p.x_stride + k;
    if (p.aligned && both) return *reinterpret_cast<const std::uint32_t*>(x);
    return x[0] | (both ? static_cast<std::uint32_t>(x[1]) << 16 : 0u);
  }
  const std::byte* x = p.x + row * p.x_stride + k;
  return e4m3_adjacent(static_cast<std::uint32_t>(x[0]) |
                       (both ? static_cast<std::uint32_t>(x[1]) << 8 : 0u));
}

template <class U, class P>
__global__ __launch_bounds__(kMaxWarps * 32, kLeastBlocks<P, 1>) void few_kernel(P p) {
  __shared__ float4 sums[2][kMaxWarps][32];  // of a round's segments; rounds take turns

  std::int64_t rows, first;
  if (!rows_of_block<kTokens>(p, rows, first)) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const std::int64_t n0 = static_cast<std::int64_t>(blockIdx.x) * kUnitRows;
  const std::int64_t token = first + lane / 4;  // whose operands this lane feeds
  const std::int64_t from = source_row(p, token, token < rows);
  const std::int64_t unit0 = unit_index(n0, 0, p.k_tiles);

  float total[4] = {};
  int round = 0;
  for (int segment0 = 0; segment0 < p.segments; segment0 += warps, ++round) {
    const int segment = segment0 + warp;
    float sum[4] = {};
    const int begin = segment * p.segment_tiles;  // past the end for a warp without a segment
    const int end = begin + p.segment_tiles < p.k_tiles ? begin + p.segment_tiles : p.k_tiles;
    for (int tile0 = begin; tile0 < end; tile0 += kAhead) {
      U unit[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (tile0 + j < end) {
          unit[j].load(p.weight, unit0 + static_cast<std::int64_t>(tile0 + j) * 4, lane);
        }
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (tile0 + j >= end) break;
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          const std::int64_t k = static_cast<std::int64_t>(tile0 + j) * kTileCols + s * 16 + lane % 4 * 2;
          const std::uint32_t b0 = token < rows ? operands2(p, from, k) : 0u;
          const std::uint32_t b1 = token < rows ? operands2(p, from, k + 8) : 0u;
          std::uint32_t a[4];
          unit[j].fragment(p.weight, s, a);
          mma_m16n8k16_bf16<kMmaPath>(sum, a, b0, b1);
        }
      }
    }
    sums[round & 1][warp][lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    __syncthreads();
    // The next round writes the other half; the one after it waits for this warp at a barrier.
    if (warp == 0) {
      for (int w = 0; w < warps && segment0 + w < p.segments; ++w) {
        const float4 v = sums[round & 1][w][lane];
        const float of[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const std::int64_t t = first + result_col(lane, i);
          total[i] = add_row_segment(p, t, t < rows, n0, segment0 + w, of[i], total[i]);
        }
      }
    }
  }
  if (warp != 0) return;
  if (finish_gate_up(p, first, rows, n0, lane, total)) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::int64_t t = first + result_col(lane, i), n = n0 + result_row(lane, i);
    if (t < rows && n < p.weight.rows) finish_row(p, t, n, total[i]);
  }
}

template <class P>
void launch(const Launch& to, const P& p, std::int64_t tiles) {
  const dim3 grid(static_cast<unsigned>((p.weight.rows + kUnitRows - 1) / kUnitRows), static_cast<unsigned>(tiles));
  const int warps = std::min<int>(kMaxWarps, p.segments);
  with_unit(p.weight, [&](auto unit) {
    few_kernel<typename decltype(unit)::type><<<grid, static_cast<unsigned>(warps * 32), 0, to.stream>>>(p);
  });
}

}  // namespace

void launch_few(const Launch& to, const LinearParams& p) {
  const std::int64_t tiles = (to.max_of(p.rows) + kTokens - 1) / kTokens;
  if (p.weight.gate_up) return launch(to, GateUpParams{p}, tiles);
  launch(to, p, tiles);
}
void launch_few(const Launch& to, const GroupedParams& p) { launch_groups<kTokens>(to, p, launch<GroupedParams>); }

}  // namespace nibble::cuda
