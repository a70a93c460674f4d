// delta_sm70.cuh: prefill rows of the delta rule on sm_70's matrix units (core/numerics/delta_order.h), in two launches.
//   prepare   a block for each chunk, key head and up to four of its value heads, all at once: keys and queries as f16,
//             A, M and the decays, which know nothing of S
//   pass      a block for each sequence, value head and 64 of its columns, chunk after chunk
//   records   of a chunk: of each value head A, M and decays, then of each key head keys and queries; all as they lie in
//             shared memory (delta_sm70_maps.h)
#pragma once

#include <cstdint>

#include "backends/cuda/device/mma_f16.cuh"
#include "backends/cuda/ops/delta_grid.cuh"
#include "backends/cuda/ops/delta_rule.h"
#include "backends/cuda/ops/delta_sm70_maps.h"
#include "core/numerics/row_scale.h"

namespace nibble::cuda {

struct DeltaSm70Params {
  const StepView* steps;
  TypedRows<float> qkv, g, beta, y;
  DeltaLayerView state;
  Section section;
  std::byte* records;
};

NIBBLE_HD std::int64_t sm70_chunk_bytes(const DeltaShape& d) {
  return std::int64_t{d.value_heads} * sm70::kRecordBytes + std::int64_t{d.key_heads} * 2 * sm70::kChunk * d.key_dim * 2;
}

// The two kernels; key_dim is 32 or 128. Rows of qkv and y at multiples of 16 bytes.
void delta_sm70_prepare(const Launch& to, const DeltaSm70Params& p);
void delta_sm70_pass(const Launch& to, const DeltaSm70Params& p);

#if defined(__CUDACC__)

namespace sm70 {

using Tile = float[8];  // a lane's sums of 16 by 16

__device__ __forceinline__ uint4* record_of(const DeltaSm70Params& p, std::int64_t chunk, int head) {
  return reinterpret_cast<uint4*>(p.records + chunk * sm70_chunk_bytes(p.state.shape) + std::int64_t{head} * kRecordBytes);
}
__device__ __forceinline__ uint4* keys_of(const DeltaSm70Params& p, std::int64_t chunk, int key_head) {
  const DeltaShape& d = p.state.shape;
  return reinterpret_cast<uint4*>(p.records + chunk * sm70_chunk_bytes(d) + std::int64_t{d.value_heads} * kRecordBytes +
                                  std::int64_t{key_head} * 2 * kChunk * d.key_dim * 2);
}

// Rounded as num::float_to_f16 does, but for the bits of NaN.
__device__ __forceinline__ std::uint32_t f16_pair(float low, float high) {
#if defined(__CUDA_ARCH__)
  std::uint32_t pair;
  asm("{\n"
      ".reg .f16 l, h;\n"
      "cvt.rn.f16.f32 l, %1;\n"
      "cvt.rn.f16.f32 h, %2;\n"
      "mov.b32 %0, {l, h};\n"
      "}"
      : "=r"(pair)
      : "f"(low), "f"(high));
  return pair;
#else
  return num::float_to_f16(low) | static_cast<std::uint32_t>(num::float_to_f16(high)) << 16;
#endif
}

// What a lane with Bit of its number clear has in b, and one with it set in a, change places.
template <int Bit, class T>
__device__ __forceinline__ void turn(int lane, T& a, T& b) {
  const bool set = (lane & Bit) != 0;
  const T other = __shfl_xor_sync(~0u, set ? a : b, Bit);
  a = set ? other : a;
  b = set ? b : other;
}

// A row's eight of k: pairs of f16.
struct Operand {
  std::uint32_t w[4];
  __device__ __forceinline__ uint2 four(int half) const { return half == 0 ? make_uint2(w[0], w[1]) : make_uint2(w[2], w[3]); }
};
__device__ __forceinline__ uint2 four(const uint4& v, int half) {
  return half == 0 ? make_uint2(v.x, v.y) : make_uint2(v.z, v.w);
}
// Of a tile of sums; scale: of the lane's two rows.
__device__ __forceinline__ Operand operand_of(int lane, const Tile& v, const float (&scale)[2]) {
  Operand o;
#pragma unroll
  for (int i = 0; i < 4; ++i) o.w[i] = f16_pair(num::mul(v[2 * i], scale[i % 2]), num::mul(v[2 * i + 1], scale[i % 2]));
  turn<2>(lane, o.w[0], o.w[1]);
  turn<2>(lane, o.w[2], o.w[3]);
  return o;
}

// The operands of both lanes that have this lane's rows, of columns that follow one another.
__device__ __forceinline__ void both(int lane, const Operand& own, Operand (&all)[2]) {
  const bool second = across_of(lane) != 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t other = __shfl_xor_sync(~0u, own.w[i], kAcrossBit);
    all[0].w[i] = second ? other : own.w[i];
    all[1].w[i] = second ? own.w[i] : other;
  }
}

// 2^-e of a lane's two rows; and 2^e.
struct Scales {
  float down[2];
  __device__ __forceinline__ float up(int r) const { return __uint_as_float((254u << 23) - __float_as_uint(down[r])); }
};
// Of the rows' largest finite magnitudes over all columns, which four lanes have.
template <int Tiles>
__device__ __forceinline__ Scales scales_of(const Tile (&v)[Tiles]) {
  std::uint32_t most[2] = {0, 0};
#pragma unroll
  for (int n = 0; n < Tiles; ++n) {
#pragma unroll
    for (int i = 0; i < 8; ++i) most[i / 2 % 2] = max(most[i / 2 % 2], num::finite_magnitude(v[n][i]));
  }
  Scales s;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    most[r] = max(most[r], __shfl_xor_sync(~0u, most[r], 2));
    most[r] = max(most[r], __shfl_xor_sync(~0u, most[r], kAcrossBit));
    s.down[r] = num::power_of_two(-num::weight_exponent(most[r]));
  }
  return s;
}

}  // namespace sm70

#endif

}  // namespace nibble::cuda
