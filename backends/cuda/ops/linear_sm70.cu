// linear_sm70.cu: y = x w^T on m8n8k4, f16 operands
//   x [T, K] f16 with exponents, or codes; y [T, N] f32
//   map   a warp = 8 rows of x, which all quad-pairs share, by 32 rows of the weight, 8 for each quad-pair;
//         block = two warps, 64 weight rows
//   loop  k ascending in fours, operands straight from memory, decoded where they are used
//   sums  a segment in one accumulator, segments in order in the same lane             parity: mirrored
//   cost  every weight is decoded once for 8 rows: simple and right, for what linear_sm70_few.cu and _tile.cu refuse
//   needs nothing; any arch, by emulation outside 7.0
#include <cstdint>

#include "core/numerics/row_scale.h"
#include "backends/cuda/device/mma_f16.cuh"
#include "backends/cuda/device/weight_f16.cuh"
#include "backends/cuda/ops/linear_groups.cuh"

namespace nibble::cuda {
namespace {

constexpr int kTokens = 8, kWarpRows = 32, kThreads = 64;
static_assert(kThreads / 32 * kWarpRows == kTileRows);

// Columns k .. k + 3 (k a multiple of 4) of one row of x; zero beyond the weight's columns.
__device__ __forceinline__ uint2 operands4(const LinearParams& p, std::int64_t row, std::int64_t k) {
  const std::int64_t cols = p.weight.cols;
  std::uint32_t pair[2] = {0, 0};
  if (p.kind == ActivationKind::nvfp4_static) {
    if (k < cols) {  // whole blocks of 16 only
      const float scale = num::e4m3_to_float(
          static_cast<std::uint8_t>(p.x_scales[row * p.scale_stride + k / 16]));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto two = static_cast<std::uint32_t>(p.x[row * p.x_stride + k / 2 + i]);
        pair[i] = e2m1_f16_pair(two & 15u, two >> 4, scale);
      }
    }
  } else if (p.kind == ActivationKind::none) {
    const auto* x = reinterpret_cast<const std::uint16_t*>(p.x) + row * p.x_stride + k;
    if (p.aligned && k + 4 <= cols) return *reinterpret_cast<const uint2*>(x);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (k + i < cols) pair[i / 2] |= static_cast<std::uint32_t>(x[i]) << (16 * (i % 2));
    }
  } else {
    const std::byte* x = p.x + row * p.x_stride + k;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      std::uint32_t two = 0;
      if (k + 2 * i < cols) two = static_cast<std::uint32_t>(x[2 * i]);
      if (k + 2 * i + 1 < cols) two |= static_cast<std::uint32_t>(x[2 * i + 1]) << 8;
      pair[i] = e4m3_f16_pair(two);
    }
  }
  return make_uint2(pair[0], pair[1]);
}

template <WeightFormat F, class P>
__global__ __launch_bounds__(kThreads, 8) void sm70_kernel(P p) {
  std::int64_t rows, first;
  if (!rows_of_block<kTokens>(p, rows, first)) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t n0 = static_cast<std::int64_t>(blockIdx.x) * kTileRows + warp * kWarpRows;
  const int of_pair = lane % 4 + lane / 16 * 4;
  const std::int64_t token = first + of_pair, n = n0 + lane / 4 % 4 * 8 + of_pair;  // what the lane feeds
  const bool there = token < rows;
  const std::int64_t from = source_row(p, token, there);

  float total[8] = {};
  for (int segment = 0; segment < p.segments; ++segment) {
    const int begin = segment * p.segment_tiles;
    const int end = begin + p.segment_tiles < p.k_tiles ? begin + p.segment_tiles : p.k_tiles;
    float sum[8] = {};
    for (std::int64_t k = std::int64_t{begin} * kTileCols; k < std::int64_t{end} * kTileCols; k += 4) {
      const uint2 a = there ? operands4(p, from, k) : make_uint2(0, 0);
      std::uint32_t b[2];
      weight4_f16<F>(p.weight, n, k, b);
      mma_m8n8k4_f16<kM8n8k4Path>(sum, a, make_uint2(b[0], b[1]));
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::int64_t t = first + (i & 2) + lane / 16 * 4 + (lane & 1);
      total[i] = add_row_segment(p, t, t < rows, n0, segment, sum[i], total[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const std::int64_t t = first + (i & 2) + lane / 16 * 4 + (lane & 1);
    const std::int64_t out = n0 + lane / 4 % 4 * 8 + (i & 1) + (lane & 2) + (i & 4);
    if (t >= rows || out >= p.weight.rows) continue;
    const std::int64_t of = source_row(p, t, true);
    const float scale = p.exponents == nullptr ? activation_scale(p, of) : num::power_of_two(p.exponents[of]);
    finish_row(p, t, out, total[i], scale);
  }
}

template <class P>
void launch(const Launch& to, const P& p, std::int64_t tiles) {
  const dim3 grid(static_cast<unsigned>(p.weight.padded_rows / kTileRows), static_cast<unsigned>(tiles));
  with_format(p.weight.format, [&](auto format) {
    sm70_kernel<decltype(format)::value><<<grid, kThreads, 0, to.stream>>>(p);
  });
}

}  // namespace

void launch_sm70(const Launch& to, const LinearParams& p) {
  launch(to, p, (to.max_of(p.rows) + kTokens - 1) / kTokens);
}
void launch_sm70(const Launch& to, const GroupedParams& p) { launch_groups<kTokens>(to, p, launch<GroupedParams>); }

}  // namespace nibble::cuda
