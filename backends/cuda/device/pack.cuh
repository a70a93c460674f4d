// pack.cuh: four neighbouring columns to codes, and the scales of their group; contract: core/ops/ops.h
// Quantize. `To` has codes, scales, scale_stride, scale and wide_codes, as CodesTo.
#pragma once

#include "backends/cuda/device/e2m1.cuh"
#include "backends/cuda/device/wide.cuh"
#include "core/checkpoint/weight.h"

namespace nibble::cuda {

struct CodesTo {
  TypedRows<std::uint8_t> codes;
  std::byte* scales;
  std::int64_t scale_stride;  // in elements
  float scale;                // of the static formats
  bool wide_codes;            // four codes (nvfp4: two bytes) in one access
};

__device__ __forceinline__ unsigned magnitude(float v) {
  const unsigned u = num::bit_cast<unsigned>(v) & 0x7FFFFFFFu;
  return u > 0x7F800000u ? 0u : u;
}
__device__ __forceinline__ unsigned magnitude4(const float* v) {
  return max(max(magnitude(v[0]), magnitude(v[1])), max(magnitude(v[2]), magnitude(v[3])));
}
// Over teams of `width` neighbouring lanes.
__device__ __forceinline__ unsigned team_max(unsigned m, int width) {
  for (int s = width / 2; s > 0; s /= 2) m = max(m, __shfl_xor_sync(0xFFFFFFFFu, m, s));
  return m;
}

__device__ __forceinline__ float fp8_scale(unsigned most) {
  const float amax = num::bit_cast<float>(most);
  return amax == 0.0f ? 1.0f : num::div(amax, 448.0f);
}

__device__ __forceinline__ void put_fp8(std::uint8_t* at, int count, bool wide, const float* v,
                                        float scale) {
  unsigned code[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) code[i] = num::float_to_e4m3(num::div(v[i], scale));
  if (wide && count == 4) {
    *reinterpret_cast<unsigned*>(at) = code[0] | code[1] << 8 | code[2] << 16 | code[3] << 24;
    return;
  }
  for (int i = 0; i < 4; ++i) {
    if (i < count) at[i] = static_cast<std::uint8_t>(code[i]);
  }
}

// Columns column .. column + 3 of a row, `count` of which exist (v of the others is 0 or NaN). Not for
// fp8_token. Whole warps call together, lane l four columns behind lane l - 1, lane 0 at a multiple of 128.
template <ActivationFormat::Kind K, class To>
__device__ __forceinline__ void pack4(const To& to, std::int64_t row, int column, int count,
                                      const float* v) {
  using Kind = ActivationFormat::Kind;
  static_assert(K == Kind::nvfp4_static || K == Kind::fp8_tensor_static || K == Kind::fp8_token_group128);
  if constexpr (K == Kind::nvfp4_static) {
    const float most = num::bit_cast<float>(team_max(magnitude4(v), 4));
    if (count == 0) return;  // whole teams: columns come in multiples of 16
    const std::uint8_t s = num::float_to_e4m3(num::div(num::div(most, 6.0f), to.scale));
    const float unit = num::mul(num::e4m3_to_float(s), to.scale);
    unsigned low = 0, high = 0;
    if (s != 0) {
      low = to_e2m1x2<kFp4Path>(num::div(v[0], unit), num::div(v[1], unit));
      high = to_e2m1x2<kFp4Path>(num::div(v[2], unit), num::div(v[3], unit));
    }
    std::uint8_t* const at = to.codes.row(row) + column / 2;
    if (to.wide_codes) {
      *reinterpret_cast<std::uint16_t*>(at) = static_cast<std::uint16_t>(low | high << 8);
    } else {
      at[0] = static_cast<std::uint8_t>(low);
      at[1] = static_cast<std::uint8_t>(high);
    }
    if (column % 16 == 0) {
      reinterpret_cast<std::uint8_t*>(to.scales)[row * to.scale_stride + column / 16] = s;
    }
  } else if constexpr (K == Kind::fp8_tensor_static) {
    if (count > 0) put_fp8(to.codes.row(row) + column, count, to.wide_codes, v, to.scale);
  } else {
    const float scale = fp8_scale(team_max(magnitude4(v), 32));
    if (count == 0) return;
    put_fp8(to.codes.row(row) + column, count, to.wide_codes, v, scale);
    if (column % 128 == 0) {
      reinterpret_cast<float*>(to.scales)[row * to.scale_stride + column / 128] = scale;
    }
  }
}

// The largest of all threads' magnitudes, for each of them; `maxima`: shared, one a warp.
template <int kThreads>
__device__ __forceinline__ unsigned block_max(unsigned most, unsigned* maxima) {
  most = team_max(most, 32);
  if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = most;
  __syncthreads();
  return team_max(maxima[threadIdx.x % (kThreads / 32)], 32);
}

// Host side.
inline bool are_wide_codes(const View& codes, ActivationFormat::Kind kind) {
  const std::uintptr_t bytes = kind == ActivationFormat::Kind::nvfp4_static ? 2 : 4;
  return reinterpret_cast<std::uintptr_t>(codes.data) % bytes == 0 &&
         static_cast<std::uintptr_t>(codes.stride) % bytes == 0;
}

}  // namespace nibble::cuda
