// delta_front.cu: a prompt's rows from the projection to the delta rule in one pass: causal convolution of four taps, silu,
// l2 norm of q and k heads of 32 or 128, and the gates
//   x, y [T, C] operand type, taps [C, 4] f32; a, b, g, beta [T, value_heads] f32
//   map    a warp takes a head through 16 rows and keeps the inputs of the rows before in registers, so that each is read
//          once; four rows are asked for at a time. Blocks before the heads': gates, a thread one head of one row
//   sums   conv: chain, oldest first; norm: num:: tree                      parity: ordered
//   cost   4 bytes, one exp and one division without branches an element -> arithmetic, near bandwidth
//   needs  nothing; any arch
#include <cmath>

#include "backends/cuda/device/convolve.cuh"
#include "backends/cuda/device/sequence.cuh"
#include "backends/cuda/device/tree.cuh"
#include "backends/cuda/ops/delta_front.h"

namespace nibble::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp, kRun = 16, kBatch = 4;  // rows of a warp, and of its loads
constexpr int kBlockRows = kWarps * kRun, kBefore = kConvTaps - 1;
constexpr int kGateParts = 4, kGateRows = kBlockRows / kGateParts;  // blocks for the gates of a block's rows
static_assert(kRun % kBatch == 0 && kBatch > kBefore);

struct Gates {
  TypedRows<float> a, b;
  const float *neg_exp_a, *dt_bias;  // null: no gates
  TypedRows<float> g, beta;
};

__device__ __forceinline__ void gates_of(const Gates& s, int heads, std::int64_t first, std::int64_t end) {
  const std::int64_t rows = min(std::int64_t{kGateRows}, end - first);
  for (std::int64_t i = threadIdx.x; i < rows * heads; i += kThreads) {
    const std::int64_t row = first + i / heads;
    const int h = static_cast<int>(i % heads);
    const float open = num::sigmoid(s.b.row(row)[h]);
    s.g.row(row)[h] = num::mul(s.neg_exp_a[h], num::softplus(num::add(s.a.row(row)[h], s.dt_bias[h])));
    s.beta.row(row)[h] = open;
  }
}

template <class T, int kEach>  // columns of a lane: lane, lane + 32, ..
__global__ void __launch_bounds__(kThreads, 4)
    front(const StepView* steps, TypedRows<T> x, const float* taps, DeltaLayerView state, Section section, float q_scale,
          TypedRows<T> y, const Gates gates) {
  const StepView& step = *steps;
  const DeltaShape& d = state.shape;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, s = static_cast<int>(section);
  const std::int64_t block = step.first_row[s] + std::int64_t{blockIdx.x} * kBlockRows, stop = step.first_row[s + 1];
  const int gate_parts = gates.neg_exp_a == nullptr ? 0 : kGateParts, head = static_cast<int>(blockIdx.y) - gate_parts;
  if (head < 0) return gates_of(gates, d.value_heads, block + std::int64_t{blockIdx.y} * kGateRows, stop);
  const std::int64_t first = block + static_cast<int>(threadIdx.x) / kWarp * kRun;
  const std::int64_t end = min(first + kRun, stop);
  if (first >= end) return;
  const bool is_value = head >= 2 * d.key_heads;
  const std::int64_t channel = lane + (is_value ? 2 * d.key_channels() + std::int64_t{head - 2 * d.key_heads} * d.value_dim
                                                : std::int64_t{head} * d.key_dim);
  float4 tap[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) tap[e] = *reinterpret_cast<const float4*>(taps + (channel + e * kWarp) * kConvTaps);
  const float scale = head < d.key_heads ? q_scale : 1.0f;
#pragma unroll 1
  for (std::int64_t row = first; row < end;) {  // a range after the other
    const RangeView& r = step.range[step.range_of_row[row]];
    const int inside = static_cast<int>(row - r.first_row);
    const int rows = static_cast<int>(min(end - row, std::int64_t{r.rows} - inside));
    const T* in = x.row(row) + channel;
    T* out = y.row(row) + channel;
    row += rows;
    float raw[kBefore + kBatch][kEach] = {};  // inputs of the three rows before, then of a batch
#pragma unroll
    for (int j = 0; j < kBefore; ++j) {
      const int at = inside - kBefore + j;
      const std::int64_t position = r.position + at;
      const T* const from = at >= 0 ? in + (j - kBefore) * x.stride : conv_row<T>(state, r.slot, max(position, std::int64_t{0})) + channel;
#pragma unroll
      for (int e = 0; e < kEach; ++e) raw[j][e] = position >= 0 ? widen(from[e * kWarp]) : 0.0f;
    }
#pragma unroll 1
    for (int left = rows; left > 0; left -= kBatch) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (i < left) {
#pragma unroll
          for (int e = 0; e < kEach; ++e) raw[kBefore + i][e] = widen(in[e * kWarp]);
          in += x.stride;
        }
      }
      float v[kBatch * kEach];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
          v[i * kEach + e] = convolved(tap[e], raw[i][e], raw[i + 1][e], raw[i + 2][e], raw[i + 3][e]);
        }
      }
      silu_all(v);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        float norm = 1.0f, squares = 0.0f;
        if (!is_value) {
#pragma unroll
          for (int e = 0; e < kEach; ++e) squares = num::fma(v[i * kEach + e], v[i * kEach + e], squares);
          norm = num::rsqrt(num::add(warp_fold(squares), 1e-6f));
        }
        if (i < left) {
#pragma unroll
          for (int e = 0; e < kEach; ++e) put(out + e * kWarp, is_value ? v[i * kEach + e] : num::mul(num::mul(v[i * kEach + e], norm), scale));
          out += y.stride;
        }
      }
#pragma unroll
      for (int j = 0; j < kBefore; ++j) {
#pragma unroll
        for (int e = 0; e < kEach; ++e) raw[j][e] = raw[kBatch + j][e];
      }
    }
  }
}

}  // namespace

bool delta_front_serves(const DeltaConvArgs& a) {
  const DeltaShape& d = a.state.shape;
  return a.section == Section::prefill && d.conv_kernel == kConvTaps && d.key_dim == d.value_dim &&
         (d.key_dim == kWarp || d.key_dim == 4 * kWarp) && reinterpret_cast<std::uintptr_t>(a.taps) % 16 == 0;
}

void delta_front(const Launch& to, const DeltaConvArgs& a, const DeltaGatesArgs* gates) {
  const DeltaShape& d = a.state.shape;
  if (to.max_rows <= 0) return;
  const auto heads = static_cast<unsigned>(2 * d.key_heads + d.value_heads);
  const dim3 grid(static_cast<unsigned>((to.max_rows + kBlockRows - 1) / kBlockRows), heads + (gates != nullptr ? kGateParts : 0u));
  Gates g{};
  if (gates != nullptr) {
    g = {typed<float>(gates->a), typed<float>(gates->b), gates->neg_exp_a, gates->dt_bias, typed<float>(gates->g),
         typed<float>(gates->beta)};
  }
  const float q_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d.key_dim)));
  with_type(a.x.dtype, [&]<class T>(T*) {
    const auto kernel = d.key_dim == kWarp ? front<T, 1> : front<T, 4>;
    kernel<<<grid, kThreads, 0, to.stream>>>(to.step, typed<T>(a.x), a.taps, a.state, a.section, q_scale, typed<T>(a.y), g);
  });
}

}  // namespace nibble::cuda
