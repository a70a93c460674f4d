// rope.cu: norm and rotation of q and k heads; k and v go to the KV pages
//   q [T, ...] head h at h * q_head_stride, k, v [T, kv_heads * head_dim], q_out [T, heads * head_dim],
//   pages [pages, kv_heads, 64, head_dim]: all of the operand type; rope [positions, rotary_dim] f32
//   map   a team (warp, or block of 256 for heads over 512 wide) = one q or k head of one row; a k
//         team also moves its v head
//   sums  num:: tree over the head                                         parity: ordered
//   cost  4 or 8 bytes an element -> bandwidth bound       needs nothing; any arch
#include "backends/cuda/device/sequence.cuh"
#include "backends/cuda/device/sm90.cuh"
#include "backends/cuda/device/tree.cuh"
#include "backends/cuda/ops/sequence.h"
#include "core/state/state_layout.h"

namespace nibble::cuda {
namespace {

constexpr int kWarpTeams = 4;

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
};

template <class T, int kTeam>
__global__ void rope_heads(const StepView* steps, RopeTask<T> a) {
  __shared__ float lanes[kTeam == kWarp ? 1 : kTreeThreads];
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
  if (is_key) {
    const std::int64_t kv_head = head - a.shape.heads;
    const std::int64_t page = step.pages[r.first_page + position / kPageTokens];
    const std::int64_t at =
        ((page * a.shape.kv_heads + kv_head) * kPageTokens + position % kPageTokens) * dim;
    const T* v = a.v.row(row) + kv_head * dim;
    for (int d = lane; d < dim; d += kTeam) a.values[at + d] = v[d];
    in.x = a.k.row(row) + kv_head * dim;
    in.weight = a.k_norm;
    out = a.keys + at;
  } else {
    in.x = a.q.row(row) + head * a.q_head_stride;
    in.weight = a.q_norm;
    out = a.q_out.row(row) + std::int64_t{head} * dim;
  }
  if (in.weight != nullptr) {
    const float squares = team_tree<kTeam>(dim, SquaresOf<T>{in.x}, lanes);
    in.norm = num::rsqrt(num::add(num::mul(squares, a.inverse), a.eps));
  }
  const int half = a.rotary_dim / 2;
  const float* angle = a.rope + position * a.rotary_dim;
  for (int i = lane; i < half; i += kTeam) {
    const float c = angle[i], s = angle[half + i];
    const float x = in(i), z = in(half + i);
    put(out + i, num::fma(x, c, -num::mul(z, s)));
    put(out + half + i, num::fma(z, c, num::mul(x, s)));
  }
  for (int d = 2 * half + lane; d < dim; d += kTeam) put(out + d, in(d));
}

}  // namespace

void qk_norm_rope(const Launch& to, const QkNormRopeArgs& a) {
  if (to.max_rows <= 0) return;
  const AttentionShape& shape = a.state.shape;
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
                           reinterpret_cast<T*>(a.state.v)};
    if (shape.head_dim <= num::kTreeSwitch) {
      const dim3 grid(static_cast<unsigned>((to.max_rows + kWarpTeams - 1) / kWarpTeams), heads);
      rope_heads<T, kWarp><<<grid, kWarpTeams * kWarp, 0, to.stream>>>(to.step, task);
    } else {
      const dim3 grid(static_cast<unsigned>(to.max_rows), heads);
      rope_heads<T, kTreeThreads><<<grid, kTreeThreads, 0, to.stream>>>(to.step, task);
    }
  });
}

}  // namespace nibble::cuda
