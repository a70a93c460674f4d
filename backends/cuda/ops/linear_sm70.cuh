// linear_sm70.cuh: what the tuned kernels of path sm70 share: a lane's 32 columns of a weight row as pairs of f16,
// eight columns of x, and where the sums of a split wait.
#pragma once

#include <cstdint>

#include "core/numerics/row_scale.h"
#include "backends/cuda/device/mma_f16.cuh"
#include "backends/cuda/device/weight_f16.cuh"
#include "backends/cuda/ops/linear_parts.cuh"

namespace nibble::cuda {

constexpr int kSm70Counters = 1 << 16;      // bytes of `sums` ahead of the parts: a counter for each tile of a split
constexpr int kSm70PartBytes = 1 << 17;     // sums of a tile and segment: 128 x 256
constexpr int kSm70PartsPerProcessor = 2;

// Columns 32 u .. 32 u + 31 of a row, for a lane.
template <WeightFormat F>
struct Columns32 {
  uint4 part[f16_parts(F)];
  std::uint32_t scales;  // nvfp4: bytes of both blocks

  __device__ __forceinline__ void load(const WeightImage& w, std::int64_t unit, int lane) {
    const auto* at = reinterpret_cast<const uint4*>(w.codes + unit * f16_unit_bytes(F)) + lane;
#pragma unroll
    for (int i = 0; i < f16_parts(F); ++i) part[i] = __ldg(at + 32 * i);
    if constexpr (F == WeightFormat::nvfp4) {
      const auto* two = reinterpret_cast<const std::uint16_t*>(w.scales + unit / 2 * kF16UnitScaleBytes);
      scales = __ldg(two + lane * 2 + unit % 2);
    }
  }
  // Eight from 8 i on.
  __device__ __forceinline__ uint4 eight(int i) const {
    if constexpr (F == WeightFormat::nvfp4) {
      const uint4& v = part[0];
      return nvfp4_columns(i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w, f16_scale_twice(scales, i / 2));
    } else if constexpr (F == WeightFormat::fp8_e4m3) {
      const uint4& v = part[i / 2];
      const uint2 low = fp8_columns(i % 2 == 0 ? v.x : v.z), high = fp8_columns(i % 2 == 0 ? v.y : v.w);
      return make_uint4(low.x, low.y, high.x, high.y);
    } else {
      return part[i];
    }
  }
};

// Eight columns of x, of which the weight has `cols`, a multiple of 8; zero beyond.
__device__ __forceinline__ uint4 x_columns(const uint4* at, int cols) {
  return cols > 0 ? __ldg(at) : make_uint4(0, 0, 0, 0);
}

// A lane's row of an operand and its eight results of a quad-pair: mma_f16.cuh.
__device__ __forceinline__ int operand_row(int lane) { return lane % 4 + lane / 16 * 4; }
__device__ __forceinline__ int sum_row(int lane, int i) { return (i & 2) + lane / 16 * 4 + (lane & 1); }
__device__ __forceinline__ int sum_col(int lane, int i) { return (i & 1) + (lane & 2) + (i & 4); }

// Two lanes that hold halves of the same rows' eight columns exchange: v[2 * h .. ] becomes columns 4 c .. 4 c + 3 of
// row (h: i & 2), c = 0 in the lane with (lane & 2) == 0, else 1.
__device__ __forceinline__ void exchange(int lane, const float (&v)[8], float4 (&out)[2]) {
  const bool upper = (lane & 2) != 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    // Values first: an index that depends on the lane would put v in memory.
    const float a = v[2 * h], b = v[2 * h + 1], c = v[4 + 2 * h], d = v[5 + 2 * h];
    const float other0 = __shfl_xor_sync(~0u, upper ? a : c, 2), other1 = __shfl_xor_sync(~0u, upper ? b : d, 2);
    out[h] = make_float4(upper ? other0 : a, upper ? other1 : b, upper ? c : other0, upper ? d : other1);
  }
}

// Up to four neighbouring columns of a row of y, all where `four`: 16 aligned bytes.
__device__ __forceinline__ float4 y_columns(const float* y, int count, bool four) {
  if (four) return *reinterpret_cast<const float4*>(y);
  return make_float4(y[0], count > 1 ? y[1] : 0.0f, count > 2 ? y[2] : 0.0f, count > 3 ? y[3] : 0.0f);
}
__device__ __forceinline__ void put_columns(float* y, int count, bool four, float4 v) {
  if (four) {
    *reinterpret_cast<float4*>(y) = v;
    return;
  }
  y[0] = v.x;
  if (count > 1) y[1] = v.y;
  if (count > 2) y[2] = v.z;
  if (count > 3) y[3] = v.w;
}
__device__ __forceinline__ float4 add4(float4 a, float4 b) {
  return make_float4(num::add(a.x, b.x), num::add(a.y, b.y), num::add(a.z, b.z), num::add(a.w, b.w));
}
__device__ __forceinline__ float4 scaled(float4 total, const float* alpha, float scale) {  // alpha: 16 aligned bytes
  const float4 a = __ldg(reinterpret_cast<const float4*>(alpha));
  return make_float4(num::mul(num::mul(total.x, a.x), scale), num::mul(num::mul(total.y, a.y), scale),
                     num::mul(num::mul(total.z, a.z), scale), num::mul(num::mul(total.w, a.w), scale));
}
// What exchange() made, of rows `token` and token + 2, four columns from n on: to y, or added to what lies there. A sum
// of products is never -0: nothing added to it is the same as +0.
template <bool Add>
__device__ __forceinline__ void put_rows(const LinearParams& l, bool fours, int rows, int token, int n, bool last,
                                         const float4 (&v)[2]) {
  const int count = static_cast<int>(l.weight.rows) - n;
  const bool four = fours && count >= 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int t = token + 2 * h;
    if (t >= rows || count <= 0) continue;
    float* const y = reinterpret_cast<float*>(l.y) + t * l.y_stride + n;
    float4 total = v[h];
    if constexpr (Add) total = add4(y_columns(y, count, four), total);
    if (last) total = scaled(total, l.weight.alpha + n, num::power_of_two(l.exponents[t]));
    put_columns(y, count, four, total);
  }
}
// Whether four columns of y are 16 aligned bytes.
inline bool y_in_fours(const LinearParams& p) {
  return p.y_stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(p.y) % 16 == 0;
}

}  // namespace nibble::cuda
