// delta_net.cu: a delta net's decode and verify rows in one launch: gates, convolution, delta rule, gated norm
//   x [T, C], z, y [T, value channels] bf16; a, b [T, value_heads] f32; S [slots, value_heads, Dim, Dim] f32
//   map    block = a value head of a range. First a thread takes a column of q, k or v of a row through the convolution, a
//          warp q or k of a row through the norm; then a warp has 16 columns of S, half a column a lane, in registers from the first row to the last; then a
//          warp takes a row through the gated norm. Value heads of one key head convolve it each for itself
//   early  S, the records that it takes and the ring's rows were left by the step before: they are asked for before the
//          launches of this step that come first have ended, and are there when the rows are convolved
//   sums   as delta_conv.cu, delta_rule.cu, norms.cu                       parity: ordered
//   cost   8 bytes an element of S, once a step whatever the rows -> latency of convolution, two chains and norm,
//          bandwidth with many sequences
//   needs  key_dim = value_dim = 32 or 128, four taps; any arch
#include "backends/cuda/ops/delta_net.h"

#include <cmath>

#include "backends/cuda/device/convolve.cuh"
#include "backends/cuda/device/half_column.cuh"
#include "backends/cuda/device/norm.cuh"
#include "backends/cuda/device/sequence.cuh"
#include "backends/cuda/device/sm90.cuh"
#include "backends/cuda/device/tree.cuh"
#include "backends/cuda/launch_early.h"
#include "backends/cuda/ops/delta_front.h"
#include "backends/cuda/ops/linear_parts.cuh"
#include "backends/cuda/ops/linear_schedule.cuh"
#include "backends/cuda/shared_memory.h"
#include "nibble/error.h"

namespace nibble::cuda {
namespace {

constexpr int kBefore = kConvTaps - 1, kParts = 3;  // q, k, v

struct Params {
  const StepView* steps;
  TypedRows<const Bf16> x;
  const float* taps;
  TypedRows<const float> a, b;
  const float *neg_exp_a, *dt_bias;
  DeltaLayerView state;
  float q_scale;
  TypedRows<Bf16> out;  // the rule's, where there is no norm
  TypedRows<const Bf16> z;
  TypedRows<Bf16> y;
  const float* weight;
  float inverse, eps;
  bool normed;
  int ahead;  // blocks that the card has at once, all of them
};

// Shared memory, for `rows` of a range at most: taps, the norm's weight, records that S takes, q, k and v (in v's place at last
// the outputs), gates, silu of z, then inputs of the three rows before and of the rows, and z.
template <int Dim>
struct Room {
  static constexpr int kChannels = kParts * Dim;
  float4* taps;
  float *weight, *old_keys, *old_us, *mixed, *open, *decay, *beta, *old_decay;
  Bf16 *inputs, *zs;
  __device__ __forceinline__ Room(float4* at, int rows)
      : taps(at),
        weight(reinterpret_cast<float*>(taps + kChannels)),
        old_keys(weight + Dim),
        old_us(old_keys + rows * Dim),
        mixed(old_us + rows * Dim),
        open(mixed + rows * kChannels),
        decay(open + rows * Dim),
        beta(decay + rows),
        old_decay(beta + rows),
        inputs(reinterpret_cast<Bf16*>(old_decay + rows)),
        zs(inputs + (kBefore + rows) * kChannels) {}
  static std::size_t bytes(int rows) {
    return static_cast<std::size_t>(kChannels * 16 + (Dim + rows * (3 * Dim + kChannels + 3)) * 4 +
                                    ((kBefore + rows) * kChannels + rows * Dim) * 2);
  }
  __device__ __forceinline__ float* row(int i, int part) const { return mixed + i * kChannels + part * Dim; }
  __device__ __forceinline__ float* old_key(int i) const { return old_keys + i * Dim; }
  __device__ __forceinline__ float* old_u(int i) const { return old_us + i * Dim; }
  __device__ __forceinline__ float* out(int i) const { return row(i, 2); }
  __device__ __forceinline__ Bf16* input(int i) const { return inputs + (kBefore + i) * kChannels; }  // from -3 on
  __device__ __forceinline__ Bf16* z(int i) const { return zs + i * Dim; }
};

// The range number `index` of those that decode or verify, or null.
__device__ __forceinline__ const RangeView* token_range(const StepView& step, int index) {
  const int at = step.first_range[static_cast<int>(Section::decode)] + index;
  if (at >= step.first_range[static_cast<int>(Section::prefill)]) return nullptr;
  const RangeView* const r = step.range + at;
  return r->rows > 0 ? r : nullptr;
}

// S of the block that will come in this one's place, into the L2.
template <int Dim>
__device__ __forceinline__ void ask_ahead(const Params& p) {
  const int heads = static_cast<int>(gridDim.x), next = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x) + p.ahead;
  const RangeView* const range = token_range(*p.steps, next / heads);
  if (range == nullptr) return;
  const auto* const s = reinterpret_cast<const std::byte*>(state_of(p.state, range->slot, next % heads));
  for (int at = static_cast<int>(threadIdx.x) * 128; at < Dim * Dim * 4; at += static_cast<int>(blockDim.x) * 128) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(s + at));
  }
}

template <int Dim>
struct Tokens {
  static constexpr int kThreads = Dim * 2, kWarps = kThreads / kWarp, kEach = Dim / kWarp;
  const Params& p;
  const RangeView& r;
  const Room<Dim> room;
  int head, warp, lane;
  bool keeps_key;  // of the value heads of one key head, one writes what is the key head's

  __device__ __forceinline__ std::int64_t channel(int part) const {
    const DeltaShape& d = p.state.shape;
    return part == 2 ? 2 * d.key_channels() + std::int64_t{head} * Dim
                     : (part == 1 ? d.key_channels() : 0) + std::int64_t{key_head_of(d, head)} * Dim;
  }

  // Records that S takes, inputs of the rows before the first, taps, weight. Of a row a thread has a column of q or k and
  // one of v or z.
  __device__ __forceinline__ void load_past() const {
    const int t = static_cast<int>(threadIdx.x), column = t % Dim;
    const RecordsView old = records_of(p.state, r.slot, r.half, head);
    for (int i = t; i < 2 * r.keep * Dim; i += kThreads) {  // keys by one half of the threads, u by the other
      const int record = i / (2 * Dim);
      (t < Dim ? room.old_key(record) : room.old_u(record))[column] =
          t < Dim ? old.key[record * old.key_stride + column] : old.u[record * old.u_stride + column];
    }
    if (t < r.keep) room.old_decay[t] = old.decay[t * old.decay_stride];
    if (p.normed && t < Dim) room.weight[t] = p.weight[t];
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      const int part = second == 0 ? t / Dim : 2, at = part * Dim + column;
      if (second == 1 && t >= Dim) break;
      const std::int64_t from = channel(part) + column;
      room.taps[at] = *reinterpret_cast<const float4*>(p.taps + from * kConvTaps);
#pragma unroll
      for (int j = -kBefore; j < 0; ++j) {
        const std::int64_t position = r.position + j;
        room.input(j)[at] = position >= 0 ? conv_row<Bf16>(p.state, r.slot, position)[from] : Bf16{0};
      }
    }
  }
  // z, and inputs of the rows, which the ring takes too.
  __device__ __forceinline__ void load_rows() const {
    const int t = static_cast<int>(threadIdx.x), part = t / Dim, column = t % Dim;
    const bool is_v = part == 0;  // else z
    const std::int64_t from = channel(part) + column, from_v = channel(2) + column, of_head = std::int64_t{head} * Dim + column;
#pragma unroll 2
    for (int i = 0; i < r.rows; ++i) {
      const std::int64_t row = std::int64_t{r.first_row} + i;
      const Bf16 x = p.x.row(row)[from];
      const Bf16 other = is_v ? p.x.row(row)[from_v] : p.normed ? p.z.row(row)[of_head] : Bf16{0};
      Bf16* const ring = conv_row<Bf16>(p.state, r.slot, r.position + i);
      room.input(i)[t] = x;
      if (keeps_key) ring[from] = x;
      (is_v ? room.input(i) + 2 * Dim : room.z(i))[column] = other;
      if (is_v) ring[from_v] = other;
    }
  }

  // A column of q, k, v or z of a row: few registers at once, as those of S are taken.
  __device__ __forceinline__ void convolve(int i, int c) const {
    if (c >= Room<Dim>::kChannels) {
      room.open[i * Dim + c - Room<Dim>::kChannels] = silu_of(widen(room.z(i)[c - Room<Dim>::kChannels]));
      return;
    }
    const float v = silu_of(convolved(room.taps[c], widen(room.input(i - 3)[c]), widen(room.input(i - 2)[c]),
                                      widen(room.input(i - 1)[c]), widen(room.input(i)[c])));
    room.row(i, 0)[c] = c < 2 * Dim ? v : as_stored(static_cast<const Bf16*>(nullptr), v);
  }
  // q or k of a row to norm 1.
  __device__ __forceinline__ void normalise(int i, int part) const {
    float* const row = room.row(i, part) + lane;
    float v[kEach], squares = 0.0f;
#pragma unroll
    for (int e = 0; e < kEach; ++e) v[e] = row[e * kWarp], squares = num::fma(v[e], v[e], squares);
    const float norm = num::rsqrt(num::add(warp_fold(squares), 1e-6f)), scale = part == 0 ? p.q_scale : 1.0f;
    float* const key = records_of(p.state, r.slot, 1 - r.half, head).key + i * p.state.shape.key_channels() + lane;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const float kept = as_stored(static_cast<const Bf16*>(nullptr), num::mul(num::mul(v[e], norm), scale));
      row[e * kWarp] = kept;
      if (part == 1 && keeps_key) key[e * kWarp] = kept;
    }
  }

  struct Gates {
    float a, b, neg_exp_a, dt_bias;
  };
  // A lane has those of a row; asked for with the rows.
  __device__ __forceinline__ Gates load_gates() const {
    if (warp != kWarps - 1 || lane >= r.rows) return {};
    const std::int64_t row = std::int64_t{r.first_row} + lane;
    return {p.a.row(row)[head], p.b.row(row)[head], p.neg_exp_a[head], p.dt_bias[head]};
  }
  __device__ __forceinline__ void gates(const Gates& of) const {
    if (lane >= r.rows) return;
    const float decay = num::exp(num::mul(of.neg_exp_a, num::softplus(num::add(of.a, of.dt_bias))));
    room.decay[lane] = decay;
    room.beta[lane] = num::sigmoid(of.b);
    const RecordsView own = records_of(p.state, r.slot, 1 - r.half, head);
    own.decay[lane * own.decay_stride] = decay;
  }

  // A row's output, or what the norm makes of it.
  __device__ __forceinline__ void store(int i) const {
    const std::int64_t row = std::int64_t{r.first_row} + i, first = std::int64_t{head} * Dim;
    float v[kEach], sum = 0.0f;
#pragma unroll
    for (int e = 0; e < kEach; ++e) v[e] = room.out(i)[lane + e * kWarp];
    if (!p.normed) {
#pragma unroll
      for (int e = 0; e < kEach; ++e) put(p.out.row(row) + first + lane + e * kWarp, v[e]);
      return;
    }
#pragma unroll
    for (int e = 0; e < kEach; ++e) sum = num::fma(v[e], v[e], sum);
    const float f = num::rsqrt(num::add(num::mul(warp_fold(sum), p.inverse), p.eps));
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int c = lane + e * kWarp;
      put(p.y.row(row) + first + c, num::mul(num::mul(num::mul(v[e], f), room.weight[c]), room.open[i * Dim + c]));
    }
  }
};

// One block waits while another computes; later cards' ptxas spills at 128 registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kBlocks = 1;
#else
constexpr int kBlocks = 2;
#endif

template <int Dim>
__global__ void __launch_bounds__(Tokens<Dim>::kThreads, Dim == 128 ? kBlocks : 8) tokens(const Params p) {
  using Block = Tokens<Dim>;
  extern __shared__ float4 memory[];
  const RangeView* const range = token_range(*p.steps, static_cast<int>(blockIdx.y));
  if (range == nullptr) return wait_for_launches_before();  // or what comes next could begin before them
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int head = static_cast<int>(blockIdx.x), ratio = p.state.shape.value_heads / p.state.shape.key_heads;
  const Block block{p, *range, Room<Dim>(memory, p.state.records), head, warp, lane, head % ratio == 0};
  const RangeView& r = block.r;
  const Room<Dim>& room = block.room;

  const int column = warp * 16 + lane % 16;
  HalfColumn<Dim, true> own{{}, lane};
  float* const s = state_of(p.state, r.slot, head) + lane / 16 * std::int64_t{own.kRows} * Dim + column;
#pragma unroll
  for (int k = 0; k < own.kRows; ++k) own.s[k] = s[std::int64_t{k} * Dim];
  block.load_past();
  if (p.ahead > 0) ask_ahead<Dim>(p);

  wait_for_launches_before();
  const typename Block::Gates gates = block.load_gates();
  block.load_rows();
  __syncthreads();
  if (warp == Block::kWarps - 1) {
    block.gates(gates);
  } else {
#pragma unroll 1
    for (int at = warp * kWarp + lane; at < r.rows * (kParts + 1) * Dim; at += (Block::kWarps - 1) * kWarp) {
      block.convolve(at / ((kParts + 1) * Dim), at % ((kParts + 1) * Dim));
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int unit = warp; unit < 2 * r.rows; unit += Block::kWarps) block.normalise(unit / 2, unit % 2);

  if (r.keep > 0) {
#pragma unroll 1
    for (int i = 0; i < r.keep; ++i) {
      const float decay = room.old_decay[i], u = room.old_u(i)[column];
      own.each(room.old_key(i), [&](float& s_k, float of_k) { s_k = num::fma(of_k, u, num::mul(decay, s_k)); });
    }
#pragma unroll
    for (int k = 0; k < own.kRows; ++k) s[std::int64_t{k} * Dim] = own.s[k];
  }
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < r.rows; ++i) {
    const float decay = room.decay[i], *const key = room.row(i, 1);
#pragma unroll
    for (float& s_k : own.s) s_k = num::mul(decay, s_k);
    const float u = num::mul(room.beta[i], num::sub(room.row(i, 2)[column], own.chain(key)));
    own.each(key, [&](float& s_k, float of_k) { s_k = num::fma(of_k, u, s_k); });
    const float sum = own.chain(room.row(i, 0));
    __syncwarp();  // both lanes of a column have read v, whose place the output takes
    if (lane < 16) {
      records_of(p.state, r.slot, 1 - r.half, head).u[i * p.state.shape.value_channels() + column] = u;
      room.out(i)[column] = as_stored(static_cast<const Bf16*>(nullptr), sum);
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int i = warp; i < r.rows; i += Block::kWarps) block.store(i);
}

std::size_t shared_bytes(const DeltaShape& d, int rows) { return d.key_dim == 32 ? Room<32>::bytes(rows) : Room<128>::bytes(rows); }

template <int Dim>
void launch(const Launch& to, const Params& p) {
  const dim3 grid(static_cast<unsigned>(p.state.shape.value_heads), static_cast<unsigned>(to.max_ranges));
  const auto bytes = static_cast<unsigned>(Room<Dim>::bytes(p.state.records));
  if (bytes > 48 * 1024) cudaFuncSetAttribute(tokens<Dim>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  // Code that is compiled on the card, from PTX, has no wait for the launches before.
  if (has_wgmma() || has_fp4()) {
    launch_early(tokens<Dim>, grid, Tokens<Dim>::kThreads, bytes, to.stream, p);
  } else {
    tokens<Dim><<<grid, Tokens<Dim>::kThreads, bytes, to.stream>>>(p);
  }
}

bool in_bf16(const View& v) { return v.dtype == DType::bf16; }

constexpr int kMostRows = kWarp;  // of a range: a lane has the gates of one

}  // namespace

const char* refuse_delta_tokens(const DeltaNetArgs& n) {
  const DeltaShape& d = n.conv.state.shape;
  if (d.conv_kernel != kConvTaps || reinterpret_cast<std::uintptr_t>(n.conv.taps) % 16 != 0) return "the convolution has not four taps";
  if (d.key_dim != d.value_dim || (d.key_dim != 32 && d.key_dim != 128)) return "heads are not of 32 or 128";
  if (!in_bf16(n.conv.x) || !in_bf16(n.rule.y) || n.conv.state.operand != DType::bf16) return "rows are not bf16";
  if (n.normed && (n.norm.group != d.value_dim || !in_bf16(n.norm.z) || !in_bf16(n.norm.y))) return "the norm has other groups";
  if (n.conv.state.records > kMostRows || shared_bytes(d, n.conv.state.records) > most_shared()) {
    return "the card has not the shared memory for the rows that can be taken back";
  }
  return nullptr;
}

void delta_tokens(const Launch& to, const DeltaNetArgs& n, bool norm) {
  if (to.max_ranges <= 0) return;
  if (const char* const why = refuse_delta_tokens(n)) {
    throw Error(ErrorCode::internal, std::string("[cuda] delta_tokens: expected what it serves, found that ") + why);
  }
  const DeltaShape& d = n.conv.state.shape;
  Params p{to.step, typed<const Bf16>(n.conv.x), n.conv.taps, typed<const float>(n.gates.a), typed<const float>(n.gates.b),
           n.gates.neg_exp_a, n.gates.dt_bias, n.conv.state, static_cast<float>(1.0 / std::sqrt(static_cast<double>(d.key_dim))),
           typed<Bf16>(n.rule.y), {}, {}, nullptr, 0.0f, 0.0f, norm, 2 * to.multiprocessors};
  if (norm) {
    p.z = typed<const Bf16>(n.norm.z);
    p.y = typed<Bf16>(n.norm.y);
    p.weight = n.norm.weight;
    p.inverse = inverse_of(n.norm.group);
    p.eps = n.norm.eps;
  }
  d.key_dim == 32 ? launch<32>(to, p) : launch<128>(to, p);
}

std::string delta_net_kernel(const DeltaNetArgs& n) {
  std::string text;
  if (n.decode || n.verify) {
    const char* const why = refuse_delta_tokens(n);
    text = why == nullptr ? "tokens in one launch" : std::string("tokens op by op, as ") + why;
  }
  if (n.prefill) {
    DeltaRuleArgs rule = n.rule;
    rule.section = Section::prefill;
    text += (text.empty() ? "prompts: " : "; prompts: ") + delta_rule_kernel(rule);
  }
  return text;
}

// Classes with prompts leave the norm of all rows to one launch.
void delta_net(const Launch& to, const DeltaNetArgs& n) {
  DeltaNetArgs part = n;
  const auto of = [&part](Section s) { part.conv.section = part.rule.section = s; };
  const bool tokens = n.decode || n.verify, at_once = tokens && refuse_delta_tokens(n) == nullptr;
  if (at_once) delta_tokens(to, n, n.normed && !n.prefill);
  if (tokens && !at_once) {
    delta_gates(to, n.gates);
    for (const Section s : {Section::decode, Section::verify}) {
      if (!(s == Section::decode ? n.decode : n.verify)) continue;
      of(s);
      delta_conv(to, part.conv);
      delta_rule(to, part.rule);
    }
  }
  if (n.prefill) {
    of(Section::prefill);
    delta_conv_and_gates(to, part.conv, n.gates);
    delta_rule(to, part.rule);
  }
  if (n.normed && (n.prefill || !at_once)) gated_rms_norm(to, n.norm);
}

}  // namespace nibble::cuda
