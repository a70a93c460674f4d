// delta_state.cu: a slot's state at rest, to and from float32; layout in sequence.h
//   map   thread = one element of S or of a conv row        parity: exact moves, fold as delta_rule
//   cost  bytes -> bandwidth bound                          needs nothing; any arch
#include "backends/cuda/device/sequence.cuh"
#include "backends/cuda/ops/sequence.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;

__host__ __device__ std::int64_t s_floats(const DeltaShape& d) {
  return std::int64_t{d.value_heads} * d.key_dim * d.value_dim;
}

// Element `i` of the conv part: its channel and its position (before 0 where there is none).
struct ConvPlace {
  std::int64_t channel, position;
};
__device__ __forceinline__ ConvPlace conv_place(const DeltaShape& d, std::int64_t i,
                                                std::int64_t position) {
  return {i % d.channels(), position - (d.conv_kernel - 1) + i / d.channels()};
}

template <class T>
__global__ void save(DeltaLayerView l, std::int32_t slot, std::int32_t half, std::int32_t keep,
                     std::int64_t position, std::int64_t count, float* to) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const DeltaShape& d = l.shape;
  const std::int64_t s = s_floats(d);
  if (i < s) {
    const int v = static_cast<int>(i % d.value_dim), k = static_cast<int>(i / d.value_dim % d.key_dim);
    const int head = static_cast<int>(i / d.value_dim / d.key_dim);
    to[i] = fold(records_of(l, slot, half, head), keep, k, v, l.s[slot * s + i]);
    return;
  }
  const ConvPlace at = conv_place(d, i - s, position);
  to[i] = at.position < 0 ? 0.0f : widen(conv_row<T>(l, slot, at.position)[at.channel]);
}

template <class T>
__global__ void load(DeltaLayerView l, std::int32_t slot, std::int64_t position, std::int64_t count,
                     const float* from) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const std::int64_t s = s_floats(l.shape);
  if (i < s) {
    l.s[slot * s + i] = from[i];
    return;
  }
  const ConvPlace at = conv_place(l.shape, i - s, position);
  if (at.position >= 0) put(conv_row<T>(l, slot, at.position) + at.channel, from[i]);
}

unsigned blocks(std::int64_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

}  // namespace

std::int64_t delta_floats(const DeltaShape& d) {
  return s_floats(d) + (d.conv_kernel - 1) * d.channels();
}

void delta_save(cudaStream_t stream, const DeltaLayerView& state, std::int32_t slot,
                std::int32_t half, std::int32_t keep, std::int64_t position, float* to) {
  const std::int64_t n = delta_floats(state.shape);
  with_type(state.operand, [&]<class T>(T*) {
    save<T><<<blocks(n), kThreads, 0, stream>>>(state, slot, half, keep, position, n, to);
  });
}

void delta_load(cudaStream_t stream, const DeltaLayerView& state, std::int32_t slot,
                std::int64_t position, const float* from) {
  const std::int64_t n = delta_floats(state.shape);
  with_type(state.operand, [&]<class T>(T*) {
    load<T><<<blocks(n), kThreads, 0, stream>>>(state, slot, position, n, from);
  });
}

void delta_reset(cudaStream_t stream, const DeltaLayerView& state, std::int32_t slot) {
  // records and conv rows are written before they are read
  const std::int64_t s = s_floats(state.shape);
  cudaMemsetAsync(state.s + slot * s, 0, static_cast<std::size_t>(s) * sizeof(float), stream);
}

}  // namespace nibble::cuda
