// emulated_mma.cuh: mma.m16n8k16 of bf16 in integer arithmetic, for devices whose own instruction adds
// up differently or does not exist, and for tests. Same fragments, same bits.
#pragma once

#include <cstdint>

#include "core/numerics/fused_dot.h"
#include "core/numerics/matrix_order.h"

namespace nibble::cuda {

// One fused sum of 16 products and c. a, b: pairs of bf16; pairs of the same index belong together,
// their order does not matter.
NIBBLE_HD float fused_dot16_bf16(const std::uint32_t* a, const std::uint32_t* b, float c) {
  float x[16], y[16];
  for (int i = 0; i < 8; ++i) {
    x[2 * i] = num::bit_cast<float>(a[i] << 16);
    x[2 * i + 1] = num::bit_cast<float>(a[i] & 0xFFFF0000u);
    y[2 * i] = num::bit_cast<float>(b[i] << 16);
    y[2 * i + 1] = num::bit_cast<float>(b[i] & 0xFFFF0000u);
  }
  return num::fused_dot<num::kSm90Order.group, num::kSm90Order.fraction_bits>(x, y, c);
}

#if defined(__CUDACC__)

// Lane 4 g + p holds of A rows g and g + 8, of B column g, of C columns 2 p and 2 p + 1; it gathers the
// two whole rows and columns that its four results need. Out of line: it would take a caller's registers.
static __device__ __noinline__ float4 emulated_m16n8k16(uint4 a, uint2 b, float4 c) {
  const int lane = static_cast<int>(threadIdx.x & 31u), g = lane >> 2, p = lane & 3;
  std::uint32_t upper[8], lower[8], left[8], right[8];
  for (int q = 0; q < 4; ++q) {
    upper[q] = __shfl_sync(~0u, a.x, 4 * g + q);
    lower[q] = __shfl_sync(~0u, a.y, 4 * g + q);
    upper[4 + q] = __shfl_sync(~0u, a.z, 4 * g + q);
    lower[4 + q] = __shfl_sync(~0u, a.w, 4 * g + q);
    left[q] = __shfl_sync(~0u, b.x, 8 * p + q);
    left[4 + q] = __shfl_sync(~0u, b.y, 8 * p + q);
    right[q] = __shfl_sync(~0u, b.x, 8 * p + 4 + q);
    right[4 + q] = __shfl_sync(~0u, b.y, 8 * p + 4 + q);
  }
  return make_float4(fused_dot16_bf16(upper, left, c.x), fused_dot16_bf16(upper, right, c.y),
                     fused_dot16_bf16(lower, left, c.z), fused_dot16_bf16(lower, right, c.w));
}

#endif

}  // namespace nibble::cuda
