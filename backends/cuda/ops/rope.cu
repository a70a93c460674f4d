// rope.cu: norm and rotation of q and k heads; k and v go to the KV pages
//   q [T, ...] head h at h * q_head_stride, k, v [T, kv_heads * head_dim], q_out [T, heads * head_dim],
//   pages [pages, kv_heads, 64, head_dim]: all of the operand type; rope [positions, rotary_dim] f32. Or pages of codes in
//   fp8 with scales [pages, kv_heads, 64] (core/numerics/kv_codes.h): heads of up to 256 by a warp
//   map   a team (warp, or block of 256 for heads over 512 wide) = one q or k head of one row; a k
//         team also moves its v head
//   sums  num:: tree over the head                                         parity: ordered
//   cost  4 or 8 bytes an element -> bandwidth bound       needs nothing; any arch
#include "backends/cuda/device/sequence.cuh"
#include "backends/cuda/device/sm90.cuh"
#include "backends/cuda/device/tree.cuh"
#include "backends/cuda/ops/sequence.h"
#include "core/numerics/kv_codes.h"
#include "core/state/state_layout.h"
#include "nibble/error.h"

namespace nibble::cuda {
namespace {

constexpr int kWarpTeams = 4, kMostCodes = 256;  // a head that becomes codes

template <class T>
struct Head {
  const T* x;
  const float* weight;  // or null
  float norm;
  __device__ __forceinline__ float operator()(int d) const {
    const float v = widen(x[d]);
    return weight ? num::mul(num::mul(v, norm), weight[d]) : v;
  }
};

template <class T>
struct RopeTask {
  TypedRows<T> q, k, v, q_out;
  std::int64_t q_head_stride;
  const float *q_norm, *k_norm, *rope;
  float eps, inverse;  // 1 / head_dim
  std::int32_t rotary_dim;
  AttentionShape shape;
  T *keys, *values;
  std::uint8_t *key_codes, *value_codes;  // in their place
  float *key_scales, *value_scales;
};

// x(d) of a row, by a warp, to codes and their scale.
template <class Values>
__device__ __forceinline__ void keep_codes(const Values& x, int dim, std::uint8_t* codes, float* scale) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float most = 0.0f;
  for (int d = lane; d < dim; d += kWarp) most = num::max(num::abs(x(d)), most);  // NaN is not greater
#pragma unroll
  for (int by = 1; by < kWarp; by *= 2) most = num::max(__shfl_xor_sync(~0u, most, by), most);
  const float unit = num::kv_scale(most);
  if (lane == 0) *scale = unit;
  for (int d = lane; d < dim; d += kWarp) codes[d] = num::kv_code(x(d), unit);
}

template <class T, int kTeam, bool Codes>
__global__ void rope_heads(const StepView* steps, RopeTask<T> a) {
  __shared__ float lanes[kTeam == kWarp ? 1 : kTreeThreads];
  __shared__ float made[Codes ? kWarpTeams : 1][Codes ? kMostCodes : 1];  // keys on their way to codes
  let_next_launch_begin();
  const StepView& step = *steps;
  const int team = static_cast<int>(threadIdx.x) / kTeam, lane = static_cast<int>(threadIdx.x) % kTeam;
  const int teams = static_cast<int>(blockDim.x) / kTeam;
  const std::int64_t row = std::int64_t{blockIdx.x} * teams + team;
  if (row >= step.rows) return;
  const RangeView& r = step.range[step.range_of_row[row]];
  const std::int64_t position = r.position + (row - r.first_row);
  const int dim = a.shape.head_dim, head = static_cast<int>(blockIdx.y);
  const bool is_key = head >= a.shape.heads;

  Head<T> in{};
  T* out = nullptr;
  std::int64_t place = 0;  // of the key's and the value's row in the pages
  if (is_key) {
    const std::int64_t kv_head = head - a.shape.heads;
    const std::int64_t page = step.pages[r.first_page + position / kPageTokens];
    place = (page * a.shape.kv_heads + kv_head) * kPageTokens + position % kPageTokens;
    const std::int64_t at = place * dim;
    const T* v = a.v.row(row) + kv_head * dim;
    if constexpr (Codes) {
      keep_codes([v](int d) { return widen(v[d]); }, dim, a.value_codes + at, a.value_scales + place);
    } else {
      for (int d = lane; d < dim; d += kTeam) a.values[at + d] = v[d];
      out = a.keys + at;
    }
    in.x = a.k.row(row) + kv_head * dim;
    in.weight = a.k_norm;
  } else {
    in.x = a.q.row(row) + head * a.q_head_stride;
    in.weight = a.q_norm;
    out = a.q_out.row(row) + std::int64_t{head} * dim;
  }
  if (in.weight != nullptr) {
    const float squares = team_tree<kTeam>(dim, SquaresOf<T>{in.x}, lanes);
    in.norm = num::rsqrt(num::add(num::mul(squares, a.inverse), a.eps));
  }
  const auto emit = [&](int d, float v) {
    if constexpr (Codes) {
      if (is_key) {
        made[team][d] = as_stored(static_cast<const T*>(nullptr), v);
        return;
      }
    }
    put(out + d, v);
  };
  const int half = a.rotary_dim / 2;
  const float* angle = a.rope + position * a.rotary_dim;
  for (int i = lane; i < half; i += kTeam) {
    const float c = angle[i], s = angle[half + i];
    const float x = in(i), z = in(half + i);
    emit(i, num::fma(x, c, -num::mul(z, s)));
    emit(half + i, num::fma(z, c, num::mul(x, s)));
  }
  for (int d = 2 * half + lane; d < dim; d += kTeam) emit(d, in(d));
  if constexpr (Codes) {
    if (!is_key) return;
    __syncwarp();
    keep_codes([&](int d) { return made[team][d]; }, dim, a.key_codes + place * dim, a.key_scales + place);
  }
}

}  // namespace

void qk_norm_rope(const Launch& to, const QkNormRopeArgs& a) {
  if (to.max_rows <= 0) return;
  const AttentionShape& shape = a.state.shape;
  const bool codes = a.state.k_scales != nullptr;
  if (codes && (a.q.dtype != DType::bf16 || shape.head_dim > kMostCodes)) {
    throw Error(ErrorCode::internal, "[cuda] qk_norm_rope: expected rows of bf16 and heads of up to 256 for pages in fp8");
  }
  const unsigned heads = static_cast<unsigned>(shape.heads + shape.kv_heads);
  with_type(a.q.dtype, [&]<class T>(T*) {
    const RopeTask<T> task{typed<T>(a.q),
                           typed<T>(a.k),
                           typed<T>(a.v),
                           typed<T>(a.q_out),
                           a.q_head_stride,
                           a.q_norm,
                           a.k_norm,
                           a.rope,
                           a.eps,
                           static_cast<float>(1.0 / shape.head_dim),
                           a.rotary_dim,
                           shape,
                           reinterpret_cast<T*>(a.state.k),
                           reinterpret_cast<T*>(a.state.v),
                           reinterpret_cast<std::uint8_t*>(a.state.k),
                           reinterpret_cast<std::uint8_t*>(a.state.v),
                           a.state.k_scales,
                           a.state.v_scales};
    if constexpr (std::is_same_v<T, Bf16>) {
      if (codes) {
        const dim3 grid(static_cast<unsigned>((to.max_rows + kWarpTeams - 1) / kWarpTeams), heads);
        return rope_heads<T, kWarp, true><<<grid, kWarpTeams * kWarp, 0, to.stream>>>(to.step, task);
      }
    }
    if (shape.head_dim <= num::kTreeSwitch) {
      const dim3 grid(static_cast<unsigned>((to.max_rows + kWarpTeams - 1) / kWarpTeams), heads);
      rope_heads<T, kWarp, false><<<grid, kWarpTeams * kWarp, 0, to.stream>>>(to.step, task);
    } else {
      const dim3 grid(static_cast<unsigned>(to.max_rows), heads);
      rope_heads<T, kTreeThreads, false><<<grid, kTreeThreads, 0, to.stream>>>(to.step, task);
    }
  });
}

}  // namespace nibble::cuda
