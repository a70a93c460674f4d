// sm90_attention.cuh: instructions of sm_90a that attention stands on beside those of sm90.cuh: wgmma with both operands
// in shared memory, and with a tile of values whose rows are steps of k. As sm90.cuh says, elsewhere they do nothing.
#pragma once

#include "backends/cuda/device/sm90_delta.cuh"

namespace nibble::cuda {

#define NIBBLE_D(i) "+f"(d[i])
#define NIBBLE_D8(i) \
  NIBBLE_D(i), NIBBLE_D(i + 1), NIBBLE_D(i + 2), NIBBLE_D(i + 3), NIBBLE_D(i + 4), NIBBLE_D(i + 5), NIBBLE_D(i + 6), NIBBLE_D(i + 7)
#define NIBBLE_D32(i) NIBBLE_D8(i), NIBBLE_D8(i + 8), NIBBLE_D8(i + 16), NIBBLE_D8(i + 24)
#define NIBBLE_TEN(t) \
  ", %" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9"
#define NIBBLE_NAMES10 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9"
#define NIBBLE_NAMES32 NIBBLE_NAMES10 NIBBLE_TEN(1) NIBBLE_TEN(2) ", %30, %31"
#define NIBBLE_NAMES64 \
  NIBBLE_NAMES10 NIBBLE_TEN(1) NIBBLE_TEN(2) NIBBLE_TEN(3) NIBBLE_TEN(4) NIBBLE_TEN(5) ", %60, %61, %62, %63"
#define NIBBLE_NAMES128                                                                                                    \
  NIBBLE_NAMES10 NIBBLE_TEN(1) NIBBLE_TEN(2) NIBBLE_TEN(3) NIBBLE_TEN(4) NIBBLE_TEN(5) NIBBLE_TEN(6) NIBBLE_TEN(7)         \
      NIBBLE_TEN(8) NIBBLE_TEN(9) NIBBLE_TEN(10) NIBBLE_TEN(11) ", %120, %121, %122, %123, %124, %125, %126, %127"

// D[64, 64] = keep * D + A[64, 16] B[64, 16]^T, bf16, both K-major tiles as B of sm90.cuh.
template <bool Keep>
__device__ __forceinline__ void wgmma_shared(float (&d)[32], std::uint64_t a, std::uint64_t b) {
#if defined(NIBBLE_SM90A)
  asm volatile("{ .reg .pred keep; setp.ne.b32 keep, %34, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NIBBLE_NAMES32 "}, %32, %33, keep, 1, 1, 0, 0; }"
               : NIBBLE_D32(0)
               : "l"(a), "l"(b), "n"(Keep ? 1 : 0)
               : "memory");
#endif
}

// D[64, N] += A[64, 16] B[16, N], bf16: rows of B in shared memory are steps of k (across_tile).
template <int N>
__device__ __forceinline__ void wgmma_across(float (&d)[N / 2], const std::uint32_t (&a)[4], std::uint64_t b) {
#if defined(NIBBLE_SM90A)
  if constexpr (N == 64) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NIBBLE_NAMES32
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : NIBBLE_D32(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
                 : "memory");
  } else if constexpr (N == 128) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NIBBLE_NAMES64
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : NIBBLE_D32(0), NIBBLE_D32(32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
                 : "memory");
  } else {
    static_assert(N == 256);
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" NIBBLE_NAMES128
                 "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;"
                 : NIBBLE_D32(0), NIBBLE_D32(32), NIBBLE_D32(64), NIBBLE_D32(96)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
                 : "memory");
  }
#endif
}

#undef NIBBLE_D
#undef NIBBLE_D8
#undef NIBBLE_D32
#undef NIBBLE_TEN
#undef NIBBLE_NAMES10
#undef NIBBLE_NAMES32
#undef NIBBLE_NAMES64
#undef NIBBLE_NAMES128

// Barrier::wait() of a thread whose turns at the scheduler others need: it sleeps up to so long between looks.
__device__ __forceinline__ void wait_asleep(Barrier b, std::uint32_t parity, std::uint32_t nanoseconds) {
#if defined(NIBBLE_BULK_COPY)
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n"
      "@!done bra again;\n}" ::"r"(b.at), "r"(parity), "r"(nanoseconds)
      : "memory");
#endif
}

}  // namespace nibble::cuda
