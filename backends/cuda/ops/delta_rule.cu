// delta_rule.cu: the gated delta rule, row by row (decode, verify), and the choice between both forms
//   qkv [T, C] operand type, g, beta [T, value_heads] f32, S [slots, value_heads, key_dim, value_dim]
//   map   key_dim 32 or 128: a warp = 16 columns of one head of one range, half a column a lane, in registers from the
//         first row to the last. Else a block = some columns (32, fewer for large key_dim), which lie in shared memory; chains:
//         a thread a column; decay and update: all threads
//   sums  chains over k                                                    parity: ordered
//   cost  8 bytes an element of S, once a step whatever the rows -> latency of two chains, bandwidth
//         with many sequences
//   needs key_dim <= 4000; any arch
#include "backends/cuda/ops/delta_rule.h"

#include "backends/cuda/device/half_column.cuh"
#include "backends/cuda/device/sequence.cuh"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxColumns = 32;
constexpr std::int64_t kSharedFloats = 48 * 1024 / 4;  // what every card gives without asking

std::int64_t shared_floats(std::int64_t key_dim, std::int64_t columns) {
  return key_dim * columns + 2 * key_dim + columns;
}

template <class T, int KeyDim>
__global__ void __launch_bounds__(32)
    step_columns(const StepView* steps, TypedRows<T> qkv, TypedRows<float> g, TypedRows<float> beta, DeltaLayerView state,
                 Section section, TypedRows<T> y) {
  __shared__ __align__(16) float key[KeyDim], query[KeyDim];
  const RangeView* range = section_range(*steps, section, static_cast<int>(blockIdx.z));
  if (range == nullptr) return;
  const RangeView r = *range;
  const DeltaShape& d = state.shape;
  const int lane = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.y);
  const int first = static_cast<int>(blockIdx.x) * 16, column = first + lane % 16;
  const bool exists = column < d.value_dim;
  HalfColumn<KeyDim, false> own{{}, lane};
  float* const memory = state_of(state, r.slot, head) + lane / 16 * std::int64_t{own.kRows} * d.value_dim +
                        (exists ? column : first);
#pragma unroll
  for (int k = 0; k < own.kRows; ++k) own.s[k] = memory[std::int64_t{k} * d.value_dim];

  if (r.keep > 0) {
    const RecordsView old = records_of(state, r.slot, r.half, head);
    for (int i = 0; i < r.keep; ++i) {
      for (int k = lane; k < KeyDim; k += 32) key[k] = old.key[i * old.key_stride + k];
      __syncwarp();
      const float decay = old.decay[i * old.decay_stride], u = exists ? old.u[i * old.u_stride + column] : 0.0f;
      own.each(key, [&](float& s, float of_k) { s = num::fma(of_k, u, num::mul(decay, s)); });
      __syncwarp();
    }
    if (exists) {
#pragma unroll
      for (int k = 0; k < own.kRows; ++k) memory[std::int64_t{k} * d.value_dim] = own.s[k];
    }
  }

  const RecordsView records = records_of(state, r.slot, 1 - r.half, head);
  const bool keeps_key = first == 0 && head % (d.value_heads / d.key_heads) == 0;
  for (int i = 0; i < r.rows; ++i) {
    const std::int64_t row = std::int64_t{r.first_row} + i;
    const T* const q = qkv.row(row) + std::int64_t{key_head_of(d, head)} * KeyDim;
    const T* const v = qkv.row(row) + 2 * d.key_channels() + std::int64_t{head} * d.value_dim;
    for (int k = lane; k < KeyDim; k += 32) {
      query[k] = widen(q[k]);
      key[k] = widen(q[d.key_channels() + k]);
      if (keeps_key) records.key[i * records.key_stride + k] = key[k];
    }
    __syncwarp();
    const float decay = num::exp(g.row(row)[head]);
    if (first == 0 && lane == 0) records.decay[i * records.decay_stride] = decay;
#pragma unroll
    for (float& s : own.s) s = num::mul(decay, s);
    const float u = num::mul(beta.row(row)[head], num::sub(exists ? widen(v[column]) : 0.0f, own.chain(key)));
    own.each(key, [&](float& s, float of_k) { s = num::fma(of_k, u, s); });
    const float sum = own.chain(query);
    if (exists && lane < 16) {
      records.u[i * records.u_stride + column] = u;
      put(y.row(row) + std::int64_t{head} * d.value_dim + column, sum);
    }
    __syncwarp();
  }
}

template <class T>
__global__ void step_rows(const StepView* steps, TypedRows<T> qkv, TypedRows<float> g,
                          TypedRows<float> beta, DeltaLayerView state, Section section, int columns,
                          TypedRows<T> y) {
  extern __shared__ float shared[];
  const RangeView* range = section_range(*steps, section, static_cast<int>(blockIdx.z));
  if (range == nullptr) return;
  const RangeView r = *range;
  const DeltaShape& d = state.shape;
  const int t = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.y);
  const int first = static_cast<int>(blockIdx.x) * columns;
  const int width = d.value_dim - first < columns ? d.value_dim - first : columns;
  const int cells = d.key_dim * columns, key_head = key_head_of(d, head);

  float* s = shared;  // [key_dim, columns]
  float* key = s + cells;
  float* query = key + d.key_dim;
  float* u = query + d.key_dim;

  const RecordsView old = records_of(state, r.slot, r.half, head);
  float* memory = state_of(state, r.slot, head) + first;
  for (int i = t; i < cells; i += kThreads) {
    const int k = i / columns, c = i % columns;
    if (c >= width) continue;
    float* at = memory + std::int64_t{k} * d.value_dim + c;
    float x = *at;
    if (r.keep > 0) *at = x = fold(old, r.keep, k, first + c, x);
    s[i] = x;
  }

  const RecordsView own = records_of(state, r.slot, 1 - r.half, head);
  const bool keeps_key = first == 0 && head % (d.value_heads / d.key_heads) == 0;
  for (int i = 0; i < r.rows; ++i) {
    const std::int64_t row = std::int64_t{r.first_row} + i;
    const T* q = qkv.row(row) + std::int64_t{key_head} * d.key_dim;
    const T* v = qkv.row(row) + 2 * d.key_channels() + std::int64_t{head} * d.value_dim + first;
    __syncthreads();
    for (int k = t; k < d.key_dim; k += kThreads) {
      query[k] = widen(q[k]);
      key[k] = widen(q[d.key_channels() + k]);
      if (keeps_key) own.key[i * own.key_stride + k] = key[k];
    }
    const float decay = num::exp(g.row(row)[head]);
    if (first == 0 && t == 0) own.decay[i * own.decay_stride] = decay;
    __syncthreads();
    if (t < width) {
      float sum = 0.0f;
#pragma unroll 8
      for (int k = 0; k < d.key_dim; ++k) {
        sum = num::fma(num::mul(decay, s[k * columns + t]), key[k], sum);
      }
      const float delta = num::mul(beta.row(row)[head], num::sub(widen(v[t]), sum));
      u[t] = delta;
      own.u[i * own.u_stride + first + t] = delta;
    }
    __syncthreads();
    for (int j = t; j < cells; j += kThreads) {
      const int k = j / columns, c = j % columns;
      if (c < width) s[j] = num::fma(key[k], u[c], num::mul(decay, s[j]));
    }
    __syncthreads();
    if (t < width) {
      float sum = 0.0f;
#pragma unroll 8
      for (int k = 0; k < d.key_dim; ++k) sum = num::fma(s[k * columns + t], query[k], sum);
      put(y.row(row) + std::int64_t{head} * d.value_dim + first + t, sum);
    }
  }
}

}  // namespace

void delta_step(const Launch& to, const DeltaRuleArgs& a) {
  const DeltaShape& d = a.state.shape;
  if (to.max_ranges <= 0) return;
  if (delta_in_registers(d)) {
    const dim3 grid(static_cast<unsigned>((d.value_dim + 15) / 16), static_cast<unsigned>(d.value_heads),
                    static_cast<unsigned>(to.max_ranges));
    with_type(a.qkv.dtype, [&]<class T>(T*) {
      const auto kernel = d.key_dim == 32 ? step_columns<T, 32> : step_columns<T, 128>;
      kernel<<<grid, 32, 0, to.stream>>>(to.step, typed<T>(a.qkv), typed<float>(a.g), typed<float>(a.beta), a.state,
                                         a.section, typed<T>(a.y));
    });
    return;
  }
  int columns = kMaxColumns;
  while (columns > 1 && shared_floats(d.key_dim, columns) > kSharedFloats) columns /= 2;
  const dim3 grid(static_cast<unsigned>((d.value_dim + columns - 1) / columns),
                  static_cast<unsigned>(d.value_heads), static_cast<unsigned>(to.max_ranges));
  const std::size_t bytes =
      static_cast<std::size_t>(shared_floats(d.key_dim, columns)) * sizeof(float);
  with_type(a.qkv.dtype, [&]<class T>(T*) {
    const TypedRows<T> qkv = typed<T>(a.qkv), y = typed<T>(a.y);
    const TypedRows<float> g = typed<float>(a.g), beta = typed<float>(a.beta);
    step_rows<T><<<grid, kThreads, bytes, to.stream>>>(to.step, qkv, g, beta, a.state, a.section,
                                                       columns, y);
  });
}

void delta_rule(const Launch& to, const DeltaRuleArgs& args) {
  if (args.section == Section::prefill) {
    if (args.records == nullptr) return delta_chunks(to, args);
    args.units == ArchPath::sm70 ? delta_units_sm70(to, args) : delta_units(to, args);
  } else {
    delta_step(to, args);
  }
}

}  // namespace nibble::cuda
