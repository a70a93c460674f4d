// norms.cu: RmsNorm and GatedRmsNorm of core/ops/ops.h, over groups of columns; RmsNorm has one
// group.
//   x, z [rows, heads * group] f32 or bf16, y as well, in place allowed      weight [group] f32
//   map   up to 512 columns: a warp a group, lane = lane of the tree; above: 256 threads a group
//   sums  f32, the tree of core/numerics/reduce.h
//   cost  2 to 8 bytes, 4 flop an element (gated: and an exp): bandwidth bound
#include <type_traits>

#include "backends/cuda/device/fold.cuh"
#include "backends/cuda/device/norm.cuh"
#include "backends/cuda/ops/eights.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
static_assert(kThreads == num::kTreeLong && num::kTreeShort == 32);

// Up to 32 * kPer columns.
template <int kPer, class X, class Z, class Y>
__global__ void __launch_bounds__(kThreads) norm_by_warp(Groups<X, Z, Y> g) {
  const int lane = threadIdx.x % 32;
  const std::int64_t item = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const std::int64_t row = item / g.heads, first = item % g.heads * g.group;
  if (row >= row_count(*g.step, g.rows)) return;
  const X* x = g.x.row(row) + first;
  const Z* z = std::is_same_v<Z, Ungated> ? nullptr : g.z.row(row) + first;
  Y* y = g.y.row(row) + first;
  float v[kPer];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kPer; ++i) v[i] = lane + 32 * i < g.group ? widen(x[lane + 32 * i]) : 0.0f;
#pragma unroll
  for (int i = 0; i < kPer; ++i) sum = num::fma(v[i], v[i], sum);  // zeros add nothing
  const float f = factor(g, warp_fold(sum));
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int c = lane + 32 * i;
    if (c < g.group) put(y + c, gated(num::mul(num::mul(v[i], f), g.weight[c]), z + c));
  }
}

// kPer columns of each thread stay in registers; 0: the row is read twice.
template <int kPer, class X, class Z, class Y>
__global__ void __launch_bounds__(kThreads) norm_by_block(Groups<X, Z, Y> g) {
  __shared__ float lanes[num::kTreeLong];
  const std::int64_t row = blockIdx.x / g.heads,
                     first = std::int64_t{blockIdx.x} % g.heads * g.group;
  if (row >= row_count(*g.step, g.rows)) return;
  const X* x = g.x.row(row) + first;
  const Z* z = std::is_same_v<Z, Ungated> ? nullptr : g.z.row(row) + first;
  Y* y = g.y.row(row) + first;
  const int t = threadIdx.x;
  float sum = 0.0f;
  if constexpr (kPer > 0) {
    float v[kPer];
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      v[i] = t + kThreads * i < g.group ? widen(x[t + kThreads * i]) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kPer; ++i) sum = num::fma(v[i], v[i], sum);
    const float f = factor(g, block_fold(sum, lanes));
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int c = t + kThreads * i;
      if (c < g.group) put(y + c, gated(num::mul(num::mul(v[i], f), g.weight[c]), z + c));
    }
  } else {
    for (int c = t; c < g.group; c += kThreads) {
      const float v = widen(x[c]);
      sum = num::fma(v, v, sum);
    }
    const float f = factor(g, block_fold(sum, lanes));
    for (int c = t; c < g.group; c += kThreads) {
      put(y + c, gated(num::mul(num::mul(widen(x[c]), f), g.weight[c]), z + c));
    }
  }
}

template <class X, class Z, class Y>
void launch(const Launch& to, const Groups<X, Z, Y>& g) {
  constexpr int kMost = 24;  // 6,144 columns
  const std::int64_t items = to.max_of(g.rows) * g.heads;
  if (items <= 0 || g.group <= 0) return;
  const auto blocks = static_cast<unsigned>(items),
             by_warps = static_cast<unsigned>((items + kWarps - 1) / kWarps);
  if (g.group <= 128) {
    norm_by_warp<4><<<by_warps, kThreads, 0, to.stream>>>(g);
  } else if (g.group <= num::kTreeSwitch) {
    norm_by_warp<num::kTreeSwitch / 32><<<by_warps, kThreads, 0, to.stream>>>(g);
  } else if (std::is_same_v<Z, Ungated> && g.group <= kMost * kThreads) {
    norm_by_block<std::is_same_v<Z, Ungated> ? kMost : 0><<<blocks, kThreads, 0, to.stream>>>(g);
  } else {
    norm_by_block<0><<<blocks, kThreads, 0, to.stream>>>(g);
  }
}

}  // namespace

void rms_norm(const Launch& to, const RmsNormArgs& a) {
  if (rms_norm_eights(to, a, nullptr) == nullptr) return;
  with_type(a.x.dtype, [&](auto* x) {
    with_type(a.y.dtype, [&](auto* y) {
      using X = std::remove_pointer_t<decltype(x)>;
      using Y = std::remove_pointer_t<decltype(y)>;
      const std::int32_t cols = a.x.cols;
      launch(to, Groups<X, Ungated, Y>{typed<const X>(a.x),
                                       {},
                                       typed<Y>(a.y),
                                       a.weight,
                                       to.step,
                                       a.x.rows,
                                       1,
                                       cols,
                                       inverse_of(cols),
                                       a.eps});
    });
  });
}

void gated_rms_norm(const Launch& to, const GatedRmsNormArgs& a) {
  if (gated_rms_norm_eights(to, a, nullptr) == nullptr) return;
  with_type(a.x.dtype, [&](auto* x) {
    with_type(a.z.dtype, [&](auto* z) {
      with_type(a.y.dtype, [&](auto* y) {
        using X = std::remove_pointer_t<decltype(x)>;
        using Z = std::remove_pointer_t<decltype(z)>;
        using Y = std::remove_pointer_t<decltype(y)>;
        launch(to, Groups<X, Z, Y>{typed<const X>(a.x), typed<const Z>(a.z), typed<Y>(a.y),
                                   a.weight, to.step, a.x.rows, a.x.cols / a.group, a.group,
                                   inverse_of(a.group), a.eps});
      });
    });
  });
}

}  // namespace nibble::cuda
