// linear_sums.cuh: accumulators of one warpgroup on their way to device memory and back, and a warp's to y.
#pragma once

#include "backends/cuda/device/sm90.cuh"
#include "backends/cuda/ops/linear_parts.cuh"

namespace nibble::cuda {

// Four warps meet at a named barrier.
__device__ __forceinline__ void threads_sync(int barrier) {
  asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory");
}

template <int N>
__device__ __forceinline__ void clear(float (&v)[N]) {
#pragma unroll
  for (float& f : v) f = 0.0f;
  settle(v);
}
// A lane's sums in shared memory, 16 bytes of each of a warp's lanes together.
template <int N>
__device__ __forceinline__ void to_shared(std::uint32_t at, const float (&v)[N]) {
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at + static_cast<std::uint32_t>(i) * 128), "f"(v[i]),
                 "f"(v[i + 1]), "f"(v[i + 2]), "f"(v[i + 3])
                 : "memory");
  }
}
template <int N>
__device__ __forceinline__ void from_shared(std::uint32_t at, float (&v)[N]) {
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[i]), "=f"(v[i + 1]), "=f"(v[i + 2]), "=f"(v[i + 3])
                 : "r"(at + static_cast<std::uint32_t>(i) * 128)
                 : "memory");
  }
}

// Sums of one warpgroup in device memory, [count / 4][128 threads] float4.
template <int N>
__device__ __forceinline__ void store_sums(float4* to, const float (&v)[N], int thread) {
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
    __stcg(to + i * 128 + thread, make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]));
  }
}
template <int N>
__device__ __forceinline__ void load_sums(const float4* from, float (&v)[N], int thread) {
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
    const float4 four = __ldcg(from + i * 128 + thread);
    v[4 * i] = four.x;
    v[4 * i + 1] = four.y;
    v[4 * i + 2] = four.z;
    v[4 * i + 3] = four.w;
    if (i % 8 == 7) asm volatile("" ::: "memory");
  }
}

// v = what lies there + v. A sum of products is never -0: nothing added to it is the same as +0.
template <int N>
__device__ __forceinline__ void add_sums(const float4* from, float (&v)[N], int thread) {
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
    const float4 four = __ldcg(from + i * 128 + thread);
    v[4 * i] = num::add(four.x, v[4 * i]);
    v[4 * i + 1] = num::add(four.y, v[4 * i + 1]);
    v[4 * i + 2] = num::add(four.z, v[4 * i + 2]);
    v[4 * i + 3] = num::add(four.w, v[4 * i + 3]);
    if (i % 8 == 7) asm volatile("" ::: "memory");  // no more than eight at once: registers are few
  }
}

// What y is of a total. Scaled: the activations' static scale comes last, as in finish().
template <bool Scaled>
__device__ __forceinline__ float scaled(const LinearParams& l, float total, float alpha) {
  const float y = num::mul(total, alpha);
  return Scaled ? num::mul(y, l.static_scale) : y;
}
// bf16: an 8 x 8 block turns over, so that a lane holds two neighbours of one token.
template <bool Scaled, int N>
__device__ __forceinline__ void store_pairs(const LinearParams& l, const TileOut& out, std::int64_t token0, int rows,
                                            int lane, const float (&alpha)[2], const float (&sum)[N]) {
  const int g = lane / 4, q = lane % 4;
#pragma unroll
  for (int j = 0; j < N / 4; ++j) {
    const std::int64_t token = token0 + j * 8 + g;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::uint32_t low = num::float_to_bf16(scaled<Scaled>(l, sum[j * 4 + 2 * h], alpha[h]));
      const std::uint32_t high = num::float_to_bf16(scaled<Scaled>(l, sum[j * 4 + 2 * h + 1], alpha[h]));
      std::uint32_t pair;
      asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(pair) : "r"(low | high << 16));
      const std::int32_t n = out.n0 + 2 * q + h * 8;
      if (token >= rows || n >= out.rows) continue;
      auto* const y = reinterpret_cast<std::uint16_t*>(out.y) + token * out.y_stride + n;
      if (n + 1 < out.rows) {
        *reinterpret_cast<std::uint32_t*>(y) = pair;
      } else {
        *y = static_cast<std::uint16_t>(pair);
      }
    }
  }
}
// An image of gate and up: a lane has row g of either, and y's columns are the warp's eight.
template <int N>
__device__ __forceinline__ void store_swiglu(const LinearParams& l, std::int64_t n0, std::int64_t token0, int rows,
                                             int lane, const float (&sum)[N]) {
  const int g = lane / 4, q = lane % 4;
  const float gate = l.weight.alpha[n0 + g], up = l.weight.alpha[n0 + g + 8];
  auto* y = reinterpret_cast<std::uint16_t*>(l.y) + (token0 + g) * l.y_stride + n0 / 2 + 2 * q;
#pragma unroll
  for (int j = 0; j < N / 4; ++j, y += 8 * l.y_stride) {
    std::uint32_t pair = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t one = swiglu_of(num::mul(sum[j * 4 + i], gate), num::mul(sum[j * 4 + 2 + i], up));
      pair |= one << (16 * i);
    }
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(pair) : "r"(pair));
    if (token0 + j * 8 + g < rows && n0 < l.weight.rows) *reinterpret_cast<std::uint32_t*>(y) = pair;
  }
}
// Totals of a warp's 16 weight rows from out.n0: columns 8 j + 2 p and + 1 of rows g (i = 0, 1) and g + 8 (2, 3).
// They leave for rows token0 .. rows - 1 of y. `alpha`: of rows g and g + 8.
template <bool Scaled, int N>
__device__ __forceinline__ void store_values(const LinearParams& l, const TileOut& out, std::int64_t token0, int rows,
                                             int lane, const float (&alpha)[2], const float (&sum)[N]) {
  const int g = lane / 4, q = lane % 4;
  if (out.y_bf16 && out.y_stride % 2 == 0 && reinterpret_cast<std::uintptr_t>(out.y) % 4 == 0) {
    return store_pairs<Scaled>(l, out, token0, rows, lane, alpha, sum);
  }
#pragma unroll
  for (int j = 0; j < N / 4; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t token = token0 + j * 8 + q * 2 + i % 2;
      const std::int32_t n = out.n0 + g + i / 2 * 8;
      if (token >= rows || n >= out.rows) continue;
      const float y = scaled<Scaled>(l, sum[j * 4 + i], alpha[i / 2]);
      if (out.y_bf16) {
        put(reinterpret_cast<Bf16*>(out.y) + token * out.y_stride + n, y);
      } else {
        put(reinterpret_cast<float*>(out.y) + token * out.y_stride + n, y);
      }
    }
  }
}
template <bool Scaled, int N>
__device__ __forceinline__ void store_tile(const LinearParams& l, const TileOut& out, std::int64_t token0, int rows,
                                           int lane, const float (&sum)[N]) {
  const float alpha[2] = {out.alpha[out.n0 + lane / 4], out.alpha[out.n0 + lane / 4 + 8]};
  store_values<Scaled>(l, out, token0, rows, lane, alpha, sum);
}
template <bool Scaled = false, int N>
__device__ __forceinline__ void store_tile(const LinearParams& l, std::int64_t n0, std::int64_t token0, int rows,
                                           int lane, const float (&sum)[N]) {
  store_tile<Scaled>(l, out_of(l, n0), token0, rows, lane, sum);
}

}  // namespace nibble::cuda
