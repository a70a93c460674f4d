// mma.cuh: D = A B + C of one warp, A [16, 16] and B [16, 8] bf16, C [16, 8] f32. Lane 4 g + p holds
//   a: (row g; k 2p, 2p+1)  (row g+8; same)  (row g; k 2p+8, 2p+9)  (row g+8; same), low half = even k
//   b: (col g; k 2p, 2p+1)  (col g; k 2p+8, 2p+9)
//   c: (row g; col 2p, 2p+1)  (row g+8; same)
// All 32 lanes take part.
#pragma once

#include <cstdint>

#include "backends/cuda/device/emulated_mma.cuh"

namespace nibble::cuda {

enum class MmaPath { native, emulated };

// The arithmetic was measured on compute capability 9.0, and is published for 12.0; what others add up
// (and 7.5 has no such instruction) is not known here, so they emulate. linear.cu's linear_kernel()
// says the same on the host.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1200)
#define NIBBLE_NATIVE_MMA 1
constexpr MmaPath kMmaPath = MmaPath::native;
#else
constexpr MmaPath kMmaPath = MmaPath::emulated;
#endif
constexpr bool native_mma(int virtual_arch) { return virtual_arch == 90 || virtual_arch == 120; }

template <MmaPath Path>
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&c)[4], const std::uint32_t (&a)[4],
                                                  std::uint32_t b0, std::uint32_t b1) {
#if defined(NIBBLE_NATIVE_MMA)
  if constexpr (Path == MmaPath::native) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    return;
  }
#endif
  const float4 d = emulated_m16n8k16(make_uint4(a[0], a[1], a[2], a[3]), make_uint2(b0, b1),
                                     make_float4(c[0], c[1], c[2], c[3]));
  c[0] = d.x;
  c[1] = d.y;
  c[2] = d.z;
  c[3] = d.w;
}

}  // namespace nibble::cuda
