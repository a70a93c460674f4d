// mma_fp4.cuh: D = A B + C of one warp on the block-scaled FP4 unit, m16n8k64: A [16, 64], B [64, 8] e2m1
// with an e4m3 scale for each 16 of k, C [16, 8] f32. Lane 4 g + p holds, low nibble = even k,
//   a: (row g; k 8p .. 8p+7)  (row g+8; same)  (row g; k 32+8p ..)  (row g+8; same)
//   b: (col g; k 8p .. 8p+7)  (col g; k 32+8p ..)
//   c: (row g; col 2p, 2p+1)  (row g+8; same)
//   scales, byte i for k 16 i .. 16 i + 15: of row g from lane p = 2 ThreadA, of row g + 8 from the next one;
//   of column g from lane p = ThreadB; other lanes' are not looked at
// A scale's bit 7 must be 0. All lanes take part.
#pragma once

#include <cstdint>

#include "backends/cuda/device/mma.cuh"
#include "core/numerics/codecs.h"
#include "core/numerics/fused_fp4.h"

namespace nibble::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 1200 && defined(__CUDA_ARCH_FEAT_SM120_ALL)
#define NIBBLE_NATIVE_FP4 1
constexpr MmaPath kFp4Path = MmaPath::native;
#else
constexpr MmaPath kFp4Path = MmaPath::emulated;
#endif

// Eight codes times eight, summed, in units of 1/4.
NIBBLE_HD int code_products(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  int sum = 0;
  const auto bytes = [](std::uint32_t codes) {  // of four codes, doubled, signed
    const std::uint32_t plus = __byte_perm(0x03020100u, 0x0C080604u, codes & 0x7777u);
    const std::uint32_t minus = __byte_perm(0xFDFEFF00u, 0xF4F8FAFCu, codes & 0x7777u);
    const std::uint32_t mask = __byte_perm(0x0000FF00u, 0u, codes >> 3 & 0x1111u);
    return static_cast<int>((plus & ~mask) | (minus & mask));
  };
  sum = __dp4a(bytes(a), bytes(b), sum);
  return __dp4a(bytes(a >> 16), bytes(b >> 16), sum);
#else
  int sum = 0;
  for (int i = 0; i < 32; i += 4) {
    const float x = num::e2m1_to_float(static_cast<std::uint8_t>(a >> i & 15u));
    const float y = num::e2m1_to_float(static_cast<std::uint8_t>(b >> i & 15u));
    sum += static_cast<int>(4.0f * x * y);
  }
  return sum;
#endif
}

// a, b: 64 codes in order of k.
NIBBLE_HD float fused_dot64_fp4(const std::uint32_t* a, const std::uint32_t* b, std::uint32_t scales_a,
                                std::uint32_t scales_b, float c) {
  std::int32_t s[4];
  for (int i = 0; i < 4; ++i) {
    s[i] = code_products(a[2 * i], b[2 * i]) + code_products(a[2 * i + 1], b[2 * i + 1]);
  }
  return num::fused_fp4_blocks(s, scales_a, scales_b, c);
}

#if defined(__CUDACC__)

// As emulated_m16n8k16. `selectors`: ThreadA + 4 ThreadB.
static __device__ __noinline__ float4 emulated_m16n8k64(uint4 a, uint2 b, float4 c,
                                                        std::uint32_t scale_a, std::uint32_t scale_b,
                                                        int selectors) {
  const int lane = static_cast<int>(threadIdx.x & 31u), g = lane >> 2, p = lane & 3;
  const Gathered r = gathered_16x8(a, b);
  const int of_a = 4 * g + 2 * (selectors & 3), of_b = 8 * p + (selectors >> 2);
  const std::uint32_t up = __shfl_sync(~0u, scale_a, of_a), low = __shfl_sync(~0u, scale_a, of_a + 1);
  const std::uint32_t even = __shfl_sync(~0u, scale_b, of_b), odd = __shfl_sync(~0u, scale_b, of_b + 4);
  return make_float4(
      fused_dot64_fp4(r.upper, r.left, up, even, c.x), fused_dot64_fp4(r.upper, r.right, up, odd, c.y),
      fused_dot64_fp4(r.lower, r.left, low, even, c.z), fused_dot64_fp4(r.lower, r.right, low, odd, c.w));
}

template <MmaPath Path, int ThreadA = 0, int ThreadB = 0, int ByteA = 0, int ByteB = 0>
__device__ __forceinline__ void mma_m16n8k64_nvfp4(float (&c)[4], const std::uint32_t (&a)[4],
                                                   const std::uint32_t (&b)[2], std::uint32_t scale_a,
                                                   std::uint32_t scale_b) {
  static_assert(ByteA == 0 && ByteB == 0, "four scales fill the register");
  static_assert(ThreadA >= 0 && ThreadA <= 1 && ThreadB >= 0 && ThreadB <= 3);
#if defined(NIBBLE_NATIVE_FP4)
  if constexpr (Path == MmaPath::native) {
    asm volatile(
        "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X"
        ".f32.e2m1.e2m1.f32.ue4m3 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, "
        "%10, {%12, %13}, %11, {%14, %15};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scale_a), "r"(scale_b),
          "n"(ByteA), "n"(ThreadA), "n"(ByteB), "n"(ThreadB));
    return;
  }
#endif
  const float4 d = emulated_m16n8k64(make_uint4(a[0], a[1], a[2], a[3]), make_uint2(b[0], b[1]),
                                     make_float4(c[0], c[1], c[2], c[3]), scale_a, scale_b,
                                     ThreadA + 4 * ThreadB);
  c[0] = d.x;
  c[1] = d.y;
  c[2] = d.z;
  c[3] = d.w;
}

#endif

}  // namespace nibble::cuda
