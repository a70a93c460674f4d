// delta_conv.cu: causal depthwise convolution, silu, l2 norm of q and k heads; raw rows to the ring
//   x, y [T, C] operand type, taps [C, kernel] f32, ring [slots, conv_rows, C] operand type
//   map   a team (warp, or block of 256 for heads over 512 wide) = one head of one row; lane j of the
//         tree owns columns j, j + lanes, ..., so what it reads back it wrote itself
//   sums  conv: chain, oldest first; norm: num:: tree                      parity: ordered
//   prefill   of four taps and heads of 32 or 128: a warp takes a head through 16 rows and keeps the inputs of the rows
//         before in registers, so that each is read once; silu by a quotient without branches (quotient.h)
//   cost  kernel reads (L1), one exp and one div an element -> bandwidth bound from a few rows on
//   needs nothing; any arch
//
// A ring has kernel - 1 + records rows. Decode and verify store at most `records` rows, never the
// places that their first rows read, so one launch reads and stores. Prefill may overwrite those
// places: a second launch stores, after all reads.
#include <cmath>

#include "backends/cuda/device/eights.cuh"
#include "backends/cuda/device/sequence.cuh"
#include "backends/cuda/device/tree.cuh"
#include "backends/cuda/ops/sequence.h"

namespace nibble::cuda {
namespace {

constexpr int kWarpTeams = 4;   // rows of a block whose teams are warps
constexpr int kStoreThreads = 256;

template <class T, int kTeam>
__global__ void convolve(const StepView* steps, TypedRows<T> x, const float* taps,
                         DeltaLayerView state, Section section, float q_scale, bool store,
                         TypedRows<T> y) {
  extern __shared__ float shared[];
  __shared__ float lanes[kTeam == kWarp ? 1 : kTreeThreads];
  const StepView& step = *steps;
  const DeltaShape& d = state.shape;
  const int team = static_cast<int>(threadIdx.x) / kTeam, lane = static_cast<int>(threadIdx.x) % kTeam;
  const int teams = static_cast<int>(blockDim.x) / kTeam, s = static_cast<int>(section);
  const std::int64_t row = step.first_row[s] + std::int64_t{blockIdx.x} * teams + team;
  if (row >= step.first_row[s + 1]) return;

  const int head = static_cast<int>(blockIdx.y);
  const bool is_value = head >= 2 * d.key_heads;
  const int width = is_value ? d.value_dim : d.key_dim;
  const std::int64_t channel =
      is_value ? 2 * d.key_channels() + std::int64_t{head - 2 * d.key_heads} * d.value_dim
               : std::int64_t{head} * d.key_dim;
  const RangeView& r = step.range[step.range_of_row[row]];
  const int history = d.conv_kernel - 1;
  const std::int64_t position = r.position + (row - r.first_row);

  const auto activated = [&](int c) {
    const float* tap = taps + (channel + c) * d.conv_kernel;
    float sum = 0.0f;
    for (int j = 0; j <= history; ++j) {
      const std::int64_t at = row - history + j, before = position - history + j;
      float raw = 0.0f;
      if (at >= r.first_row) {
        raw = widen(x.row(at)[channel + c]);
      } else if (before >= 0) {
        raw = widen(conv_row<T>(state, r.slot, before)[channel + c]);
      }
      sum = num::fma(tap[j], raw, sum);
    }
    return num::silu(sum);
  };
  T* out = y.row(row) + channel;
  if (is_value) {
    for (int c = lane; c < width; c += kTeam) put(out + c, activated(c));
  } else {
    // A tree of 32 lanes in a block of 256 is not met here: such widths go to warps.
    float* kept = shared + std::int64_t{team} * d.key_dim;
    const float squares = team_tree<kTeam>(
        width,
        [&](float sum, std::int64_t c) {
          const float v = activated(static_cast<int>(c));
          kept[c] = v;
          return num::fma(v, v, sum);
        },
        lanes);
    const float norm = num::rsqrt(num::add(squares, 1e-6f));
    const float scale = head < d.key_heads ? q_scale : 1.0f;
    for (int c = lane; c < width; c += kTeam) {
      put(out + c, num::mul(num::mul(kept[c], norm), scale));
    }
  }
  if (store) {
    const T* from = x.row(row) + channel;
    T* to = conv_row<T>(state, r.slot, position) + channel;
    for (int c = lane; c < width; c += kTeam) to[c] = from[c];
  }
}

// Rows that a warp takes a head through.
constexpr int kRowsOfRun = 16, kRunTaps = 4;

// num::silu of a finite number or not.
__device__ __forceinline__ float silu_of(float x) {
  const float d = num::silu_denominator(x), size = num::abs(x);
  const float made = num::silu_by(x, d, near_reciprocal(d));
  const bool exact = x >= num::kSiluLeast && (size >= 0x1p-100f || size == 0.0f) && size <= 0x1p100f;
  return exact ? made : num::silu(x);
}

template <class T, int kEach>  // columns of a lane: lane, lane + 32, ..
__global__ void __launch_bounds__(kWarpTeams * kWarp)
    convolve_runs(const StepView* steps, TypedRows<T> x, const float* taps, DeltaLayerView state, Section section,
                  float q_scale, TypedRows<T> y) {
  const StepView& step = *steps;
  const DeltaShape& d = state.shape;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, s = static_cast<int>(section);
  const std::int64_t first =
      step.first_row[s] + (std::int64_t{blockIdx.x} * kWarpTeams + static_cast<int>(threadIdx.x) / kWarp) * kRowsOfRun;
  const std::int64_t end = min(first + kRowsOfRun, static_cast<std::int64_t>(step.first_row[s + 1]));
  if (first >= end) return;
  const int head = static_cast<int>(blockIdx.y);
  const bool is_value = head >= 2 * d.key_heads;
  const std::int64_t channel = is_value ? 2 * d.key_channels() + std::int64_t{head - 2 * d.key_heads} * d.value_dim
                                        : std::int64_t{head} * d.key_dim;
  float tap[kEach][kRunTaps], raw[kEach][kRunTaps];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const float4 four = *reinterpret_cast<const float4*>(taps + (channel + lane + e * kWarp) * kRunTaps);
    tap[e][0] = four.x, tap[e][1] = four.y, tap[e][2] = four.z, tap[e][3] = four.w;
  }
  std::int64_t until = first;  // where the range ends whose rows before are in `raw`
  for (std::int64_t row = first; row < end; ++row) {
    if (row >= until) {
      const RangeView& r = step.range[step.range_of_row[row]];
      until = std::int64_t{r.first_row} + r.rows;
      const std::int64_t position = r.position + (row - r.first_row);
#pragma unroll
      for (int j = 1; j < kRunTaps; ++j) {  // raw[j]: of the row that comes j places behind the first tap's
        const std::int64_t at = row - kRunTaps + j, before = position - kRunTaps + j;
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
          const std::int64_t c = channel + lane + e * kWarp;
          raw[e][j] = at >= r.first_row ? widen(x.row(at)[c])
                      : before >= 0     ? widen(conv_row<T>(state, r.slot, before)[c])
                                        : 0.0f;
        }
      }
    }
    float v[kEach], squares = 0.0f;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
#pragma unroll
      for (int j = 0; j + 1 < kRunTaps; ++j) raw[e][j] = raw[e][j + 1];
      raw[e][kRunTaps - 1] = widen(x.row(row)[channel + lane + e * kWarp]);
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kRunTaps; ++j) sum = num::fma(tap[e][j], raw[e][j], sum);
      v[e] = silu_of(sum);
      squares = num::fma(v[e], v[e], squares);
    }
    T* const out = y.row(row) + channel + lane;
    if (!is_value) {
      const float norm = num::rsqrt(num::add(warp_fold(squares), 1e-6f));
      const float scale = head < d.key_heads ? q_scale : 1.0f;
#pragma unroll
      for (int e = 0; e < kEach; ++e) v[e] = num::mul(num::mul(v[e], norm), scale);
    }
#pragma unroll
    for (int e = 0; e < kEach; ++e) put(out + e * kWarp, v[e]);
  }
}

// Prefill is never taken back: its last kernel - 1 rows are enough.
template <class T>
__global__ void store_last_rows(const StepView* steps, TypedRows<T> x, DeltaLayerView state,
                                Section section) {
  const RangeView* r = section_range(*steps, section, static_cast<int>(blockIdx.y));
  if (r == nullptr) return;
  const std::int64_t c = std::int64_t{blockIdx.x} * kStoreThreads + threadIdx.x;
  if (c >= state.shape.channels()) return;
  const int history = state.shape.conv_kernel - 1;
  for (int i = r->rows > history ? r->rows - history : 0; i < r->rows; ++i) {
    conv_row<T>(state, r->slot, r->position + i)[c] = x.row(r->first_row + std::int64_t{i})[c];
  }
}

unsigned blocks(std::int64_t n, std::int64_t each) {
  return static_cast<unsigned>((n + each - 1) / each);
}

}  // namespace

void delta_conv(const Launch& to, const DeltaConvArgs& a) {
  const DeltaShape& d = a.state.shape;
  const std::int64_t rows = section_max_rows(to, a.section, a.state.records);
  if (rows <= 0 || to.max_ranges <= 0) return;
  const unsigned heads = static_cast<unsigned>(2 * d.key_heads + d.value_heads);
  const float q_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d.key_dim)));
  const bool prefill = a.section == Section::prefill;
  with_type(a.x.dtype, [&]<class T>(T*) {
    const TypedRows<T> x = typed<T>(a.x), y = typed<T>(a.y);
    const std::size_t row_bytes = static_cast<std::size_t>(d.key_dim) * sizeof(float);
    const bool runs = prefill && d.conv_kernel == kRunTaps && d.key_dim == d.value_dim &&
                      (d.key_dim == kWarp || d.key_dim == 4 * kWarp) && reinterpret_cast<std::uintptr_t>(a.taps) % 16 == 0;
    if (runs) {
      const auto kernel = d.key_dim == kWarp ? convolve_runs<T, 1> : convolve_runs<T, 4>;
      kernel<<<dim3(blocks(rows, kWarpTeams * kRowsOfRun), heads), kWarpTeams * kWarp, 0, to.stream>>>(
          to.step, x, a.taps, a.state, a.section, q_scale, y);
    } else if (d.key_dim <= num::kTreeSwitch) {
      const dim3 grid(blocks(rows, kWarpTeams), heads);
      convolve<T, kWarp><<<grid, kWarpTeams * kWarp, kWarpTeams * row_bytes, to.stream>>>(
          to.step, x, a.taps, a.state, a.section, q_scale, !prefill, y);
    } else {
      const dim3 grid(blocks(rows, 1), heads);
      convolve<T, kTreeThreads><<<grid, kTreeThreads, row_bytes, to.stream>>>(
          to.step, x, a.taps, a.state, a.section, q_scale, !prefill, y);
    }
    if (prefill && d.conv_kernel > 1) {
      const dim3 grid(blocks(d.channels(), kStoreThreads), static_cast<unsigned>(to.max_ranges));
      store_last_rows<T><<<grid, kStoreThreads, 0, to.stream>>>(to.step, x, a.state, a.section);
    }
  });
}

}  // namespace nibble::cuda
