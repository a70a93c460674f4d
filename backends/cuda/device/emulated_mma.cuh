// emulated_mma.cuh: mma.m16n8k16 of bf16 in integer arithmetic, for devices whose own instruction adds
// up differently or does not exist, and for tests. Same fragments, same bits.
#pragma once

#include <cstdint>

#include "backends/cuda/device/fragments.cuh"
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

// Out of line: it would take a caller's registers.
static __device__ __noinline__ float4 emulated_m16n8k16(uint4 a, uint2 b, float4 c) {
  const Gathered r = gathered_16x8(a, b);
  return make_float4(fused_dot16_bf16(r.upper, r.left, c.x), fused_dot16_bf16(r.upper, r.right, c.y),
                     fused_dot16_bf16(r.lower, r.left, c.z), fused_dot16_bf16(r.lower, r.right, c.w));
}

#endif

}  // namespace nibble::cuda
