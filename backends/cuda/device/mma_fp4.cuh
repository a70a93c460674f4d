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

namespace nibble::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 1200 && defined(__CUDA_ARCH_FEAT_SM120_ALL)
#define NIBBLE_NATIVE_FP4 1
constexpr MmaPath kFp4Path = MmaPath::native;
#else
constexpr MmaPath kFp4Path = MmaPath::emulated;
#endif

constexpr int kFp4FractionBits = 35;

struct Fp4Scale {
  int sig, e;  // sig in units of 1/8
};
// Bit 7 is not looked at.
NIBBLE_HD Fp4Scale split_scale(std::uint32_t byte) {
  const int field = static_cast<int>(byte >> 3 & 15u), rest = static_cast<int>(byte & 7u);
  return {field == 0 ? rest : rest + 8, field == 0 ? -6 : field - 7};
}

// The fused sum of four blocks and c; a block with a zero scale takes no part. s: a block's sum of code products, in units of 1/4; scales: a byte
// for each block.
NIBBLE_HD float fused_blocks(const int (&s)[4], std::uint32_t scales_a, std::uint32_t scales_b, float c) {
  using namespace num::detail;
  const std::uint32_t c_bits = num::bit_cast<std::uint32_t>(c);
  bool nan = is_nan(c_bits);
  constexpr int kNone = -100000;
  int e[4], term[4], m = is_zero(c_bits) ? kNone : split<-126>(c_bits).e;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t x = scales_a >> (8 * i) & 0xFFu, y = scales_b >> (8 * i) & 0xFFu;
    nan = nan || (x & 0x7Fu) == 0x7Fu || (y & 0x7Fu) == 0x7Fu;
    const Fp4Scale u = split_scale(x), v = split_scale(y);
    e[i] = u.e + v.e;
    term[i] = s[i] * u.sig * v.sig;  // at most 518,400 units of 2^-8
    if (u.sig != 0 && v.sig != 0 && e[i] > m) m = e[i];
  }
  if (nan) return num::bit_cast<float>(0x7FFFFFFFu);
  if (is_inf(c_bits)) return c;
  if (m == kNone) return 0.0f;
  std::int64_t sum = 0;
  if (!is_zero(c_bits)) {
    const SigExp v = split<-126>(c_bits);
    const auto units = static_cast<std::int64_t>(shifted(v.sig, kFp4FractionBits - 23 + v.e - m));
    sum = c_bits >> 31 == 0 ? units : -units;
  }
  for (int i = 0; i < 4; ++i) {
    if (term[i] == 0) continue;  // the exponent of a zero scale may lie above m
    const auto magnitude = static_cast<std::uint64_t>(term[i] < 0 ? -term[i] : term[i]);
    const auto units =
        static_cast<std::int64_t>(shifted(magnitude, kFp4FractionBits - 8 + e[i] - m));
    sum += term[i] < 0 ? -units : units;
  }
  const bool negative = sum < 0;
  return truncated<24>(static_cast<std::uint64_t>(negative ? -sum : sum), m - kFp4FractionBits,
                       negative);
}

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
  int s[4];
  for (int i = 0; i < 4; ++i) {
    s[i] = code_products(a[2 * i], b[2 * i]) + code_products(a[2 * i + 1], b[2 * i + 1]);
  }
  return fused_blocks(s, scales_a, scales_b, c);
}

#if defined(__CUDACC__)

// As emulated_m16n8k16: a lane gathers the rows and columns of its four results. `selectors`: ThreadA + 4 ThreadB.
static __device__ __noinline__ float4 emulated_m16n8k64(uint4 a, uint2 b, float4 c,
                                                        std::uint32_t scale_a, std::uint32_t scale_b,
                                                        int selectors) {
  const int lane = static_cast<int>(threadIdx.x & 31u), g = lane >> 2, p = lane & 3;
  std::uint32_t upper[8], lower[8], left[8], right[8];
#pragma unroll
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
  const int of_a = 4 * g + 2 * (selectors & 3), of_b = 8 * p + (selectors >> 2);
  const std::uint32_t up = __shfl_sync(~0u, scale_a, of_a), low = __shfl_sync(~0u, scale_a, of_a + 1);
  const std::uint32_t even = __shfl_sync(~0u, scale_b, of_b), odd = __shfl_sync(~0u, scale_b, of_b + 4);
  return make_float4(
      fused_dot64_fp4(upper, left, up, even, c.x), fused_dot64_fp4(upper, right, up, odd, c.y),
      fused_dot64_fp4(lower, left, low, even, c.z), fused_dot64_fp4(lower, right, low, odd, c.w));
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
