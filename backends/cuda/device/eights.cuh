// eights.cuh: eight neighbouring bf16 values of a row as four words, and what kernels that work on them share.
#pragma once

#include "backends/cuda/device/rows.cuh"
#include "core/numerics/quotient.h"

namespace nibble::cuda {

struct Eight {
  unsigned w[4];  // the lower column in the low half
};

__device__ __forceinline__ Eight load8(const Bf16* at) {
  const uint4 v = *reinterpret_cast<const uint4*>(at);
  return {{v.x, v.y, v.z, v.w}};
}
// Never, in a grid of two dimensions, but known only when what was loaded is there: a branch on it lets ptxas ask for
// all operands at once, and not for each where it is used, after all work on the others.
__device__ __forceinline__ bool never(unsigned loaded) { return (loaded & blockIdx.z) != 0; }
__device__ __forceinline__ void store8(Bf16* at, const Eight& v) {
  *reinterpret_cast<uint4*>(at) = make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]);
}
__device__ __forceinline__ void load8(const float* at, float* v) {
  const float4 a = reinterpret_cast<const float4*>(at)[0], b = reinterpret_cast<const float4*>(at)[1];
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
  v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

__device__ __forceinline__ float low_of(unsigned pair) { return num::bit_cast<float>(pair << 16); }
__device__ __forceinline__ float high_of(unsigned pair) { return num::bit_cast<float>(pair & 0xFFFF0000u); }
__device__ __forceinline__ void widen8(const Eight& v, float* to) {
#pragma unroll
  for (int i = 0; i < 4; ++i) to[2 * i] = low_of(v.w[i]), to[2 * i + 1] = high_of(v.w[i]);
}

// Rounded as num::float_to_bf16 does, but for the bits of NaN.
__device__ __forceinline__ unsigned bf16_pair(float low, float high) {
#if __CUDA_ARCH__ >= 800
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return num::float_to_bf16(low) | static_cast<unsigned>(num::float_to_bf16(high)) << 16;
#endif
}
__device__ __forceinline__ Eight narrow8(const float* v) {
  Eight to;
#pragma unroll
  for (int i = 0; i < 4; ++i) to.w[i] = bf16_pair(v[2 * i], v[2 * i + 1]);
  return to;
}

constexpr unsigned kInfinity = 0x7F800000u;  // magnitudes are compared as bits of float32; those above are NaN

// The largest magnitude of the eight; some NaN if one is NaN.
__device__ __forceinline__ unsigned most8(const Eight& v) {
#if __CUDA_ARCH__ >= 800
  unsigned m;
  asm("{\n"
      ".reg .b32 a, b, c, d;\n"
      "abs.bf16x2 a, %1;\n"
      "abs.bf16x2 b, %2;\n"
      "abs.bf16x2 c, %3;\n"
      "abs.bf16x2 d, %4;\n"
      "max.NaN.bf16x2 a, a, b;\n"
      "max.NaN.bf16x2 c, c, d;\n"
      "max.NaN.bf16x2 %0, a, c;\n"
      "}"
      : "=r"(m)
      : "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]));
  return max(m << 16, m & 0xFFFF0000u);
#else
  unsigned most = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) most = max(most, max(v.w[i] << 16 & 0x7FFF0000u, v.w[i] & 0x7FFF0000u));
  return most;
#endif
}
// The same, NaN ignored.
__device__ __forceinline__ unsigned most8_number(const Eight& v) {
  unsigned most = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned low = v.w[i] << 16 & 0x7FFF0000u, high = v.w[i] & 0x7FFF0000u;
    most = max(most, max(low > kInfinity ? 0u : low, high > kInfinity ? 0u : high));
  }
  return most;
}
// The smallest; of NaN any of the others, or NaN.
__device__ __forceinline__ float least8(const Eight& v) {
#if __CUDA_ARCH__ >= 800
  unsigned m;
  asm("{\n"
      ".reg .b32 a, b;\n"
      "min.bf16x2 a, %1, %2;\n"
      "min.bf16x2 b, %3, %4;\n"
      "min.bf16x2 %0, a, b;\n"
      "}"
      : "=r"(m)
      : "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]));
  return fminf(low_of(m), high_of(m));
#else
  float least = low_of(v.w[0]);
#pragma unroll
  for (int i = 0; i < 4; ++i) least = fminf(least, fminf(low_of(v.w[i]), high_of(v.w[i])));
  return least;
#endif
}

// At most one ulp from 1 / v, for 2^-126 <= v <= 2^126.
__device__ __forceinline__ float near_reciprocal(float v) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(v));
  return y;
}

// N eights that follow one another, what a lane has of a row. N = 1: few rows, as many threads as can be; 2: less work.
template <int N>
struct Eights {
  static_assert(N == 1 || N == 2);
  Eight of[N];
  unsigned most;  // magnitude; some NaN if one is NaN
  __device__ __forceinline__ void find_most() { most = max(most8(of[0]), most8(of[N - 1])); }
  __device__ __forceinline__ unsigned most_number() const {
    return most <= kInfinity ? most : max(most8_number(of[0]), most8_number(of[N - 1]));
  }
};

// before * num::silu(gate), rounded to bf16. Where a gate is out of silu_by's range (an infinite one gives NaN) all are
// made as the contract says.
template <int N>
__device__ __forceinline__ Eights<N> times_silu(const float (&before)[N][8], const Eight (&gate)[N]) {
  Eights<N> made;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    float g[8], v[8];
    widen8(gate[n], g);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float d = num::silu_denominator(g[i]);
      v[i] = num::mul(num::silu_by(g[i], d, near_reciprocal(d)), before[n][i]);
    }
    made.of[n] = narrow8(v);
  }
  made.find_most();
  if (fminf(least8(gate[0]), least8(gate[N - 1])) < num::kSiluLeast || made.most > kInfinity) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      float g[8], v[8];
      widen8(gate[n], g);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = num::mul(num::silu(g[i]), before[n][i]);
      made.of[n] = narrow8(v);
    }
    made.find_most();
  }
  return made;
}

// Host side: rows of `view` can be read eight columns at a time.
inline bool in_eights(const View& view, std::int32_t cols) {
  const std::uintptr_t size = view.dtype == DType::f32 ? 4 : 2;
  return cols % 8 == 0 && reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 &&
         static_cast<std::uintptr_t>(view.stride) * size % 16 == 0;
}

}  // namespace nibble::cuda
