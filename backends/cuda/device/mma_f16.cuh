// mma_f16.cuh: D = A B + C of four quad-pairs of one warp, m8n8k4: A [8, 4], B [4, 8] f16, C [8, 8] f32 each.
// Lane l belongs to quad-pair (l / 4) % 4; with r = l % 4 + 4 * (l >= 16) it holds
//   a: row r, k 0, 1 | k 2, 3     b: column r, the same; low half = even k
//   c[i]: row (i & 2) + 4 * (l >= 16) + (l & 1), column (i & 1) + (l & 2) + (i & 4)
// and of a B that lies row by row
//   b: k l % 4, columns 0, 1 | 2, 3 from 4 * (l >= 16) on
// All 32 lanes take part.
#pragma once

#include <cstdint>

#include "backends/cuda/device/mma.cuh"
#include "core/numerics/codecs.h"

namespace nibble::cuda {

// Later cards run this instruction too, with other arithmetic (measured on 9.0).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 700
#define NIBBLE_NATIVE_M8N8K4 1
constexpr MmaPath kM8n8k4Path = MmaPath::native;
#else
constexpr MmaPath kM8n8k4Path = MmaPath::emulated;
#endif
constexpr bool native_m8n8k4(int virtual_arch) { return virtual_arch == 70; }

// One fused sum of four products and c. a, b: pairs of f16.
NIBBLE_HD float fused_dot4_f16(const std::uint32_t* a, const std::uint32_t* b, float c) {
  float x[4], y[4];
  for (int i = 0; i < 4; ++i) {
    x[i] = num::f16_to_float(static_cast<std::uint16_t>(a[i / 2] >> (16 * (i % 2))));
    y[i] = num::f16_to_float(static_cast<std::uint16_t>(b[i / 2] >> (16 * (i % 2))));
  }
  return num::fused_dot<num::kSm70Order.group, num::kSm70Order.fraction_bits, 24,
                        num::kF16MinExponent>(x, y, c);
}

#if defined(__CUDACC__)

struct Sums8 {
  float v[8];
};

// A lane's results are two rows by four columns of its quad-pair. Out of line, as emulated_m16n8k16.
static __device__ __noinline__ Sums8 emulated_m8n8k4(uint2 a, uint2 b, Sums8 c) {
  const int lane = static_cast<int>(threadIdx.x & 31u), first = lane & 12, upper = lane & 16;
  std::uint32_t row[2][2], col[4][2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int from = first + upper + (lane & 1) + 2 * i;
    row[i][0] = __shfl_sync(~0u, a.x, from);
    row[i][1] = __shfl_sync(~0u, a.y, from);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int from = first + (lane & 2) + i % 2 + i / 2 * 16;
    col[i][0] = __shfl_sync(~0u, b.x, from);
    col[i][1] = __shfl_sync(~0u, b.y, from);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    c.v[i] = fused_dot4_f16(row[i / 2 % 2], col[i % 2 + i / 4 * 2], c.v[i]);
  }
  return c;
}

template <MmaPath Path>
__device__ __forceinline__ void mma_m8n8k4_f16(float (&c)[8], uint2 a, uint2 b) {
#if defined(NIBBLE_NATIVE_M8N8K4)
  if constexpr (Path == MmaPath::native) {
    asm volatile(
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, "
        "{%0, %1, %2, %3, %4, %5, %6, %7};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
          "+f"(c[7])
        : "r"(a.x), "r"(a.y), "r"(b.x), "r"(b.y));
    return;
  }
#endif
  Sums8 d;
#pragma unroll
  for (int i = 0; i < 8; ++i) d.v[i] = c[i];
  d = emulated_m8n8k4(a, b, d);
#pragma unroll
  for (int i = 0; i < 8; ++i) c[i] = d.v[i];
}

// B row by row to column by column.
__device__ __forceinline__ uint2 columns_of_rows(uint2 b) {
  const int lane = static_cast<int>(threadIdx.x & 31u);
  std::uint32_t k[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int from = (lane & 28) + i;
    const std::uint32_t low = __shfl_sync(~0u, b.x, from), high = __shfl_sync(~0u, b.y, from);
    k[i] = ((lane & 2) != 0 ? high : low) >> ((lane & 1) * 16) & 0xFFFFu;
  }
  return make_uint2(k[0] | k[1] << 16, k[2] | k[3] << 16);
}

// The same with B row by row.
template <MmaPath Path>
__device__ __forceinline__ void mma_m8n8k4_f16_rows(float (&c)[8], uint2 a, uint2 b) {
#if defined(NIBBLE_NATIVE_M8N8K4)
  if constexpr (Path == MmaPath::native) {
    asm volatile(
        "mma.sync.aligned.m8n8k4.row.row.f32.f16.f16.f32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, "
        "{%0, %1, %2, %3, %4, %5, %6, %7};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
          "+f"(c[7])
        : "r"(a.x), "r"(a.y), "r"(b.x), "r"(b.y));
    return;
  }
#endif
  mma_m8n8k4_f16<MmaPath::emulated>(c, a, columns_of_rows(b));
}

#endif

}  // namespace nibble::cuda
