// sm90_delta.cuh: more instructions of sm_90a, those of the delta rule's kernels: wgmma with B's rows as steps of k, wgmma
// in tf32, and 8 x 8 matrices that turn on their way between registers and shared memory. As sm90.cuh says, elsewhere
// they do nothing.
#pragma once

#include "backends/cuda/device/sm90.cuh"

namespace nibble::cuda {

// A tile of B (sm90.cuh) whose rows have 128 or 64 bytes, swizzled across as many; eight rows lie together.
template <int RowBytes>
constexpr std::uint32_t kTileHalf = static_cast<std::uint32_t>(RowBytes) / 2 | (RowBytes == 128 ? 1u : 2u) << 30;
template <int RowBytes>
__device__ __forceinline__ std::uint64_t tile_of(std::uint32_t address) {
  static_assert(RowBytes == 128 || RowBytes == 64);
  return static_cast<std::uint64_t>(kTileHalf<RowBytes>) << 32 | first_half(address);
}
// The same tile where its rows are steps of k; columns go on in a tile `next` bytes further.
template <int RowBytes>
__device__ __forceinline__ std::uint64_t across_tile(std::uint32_t address, std::uint32_t next) {
  static_assert(RowBytes == 128 || RowBytes == 64);
  return static_cast<std::uint64_t>(kTileHalf<RowBytes>) << 32 | next / 16 << 16 | address >> 4;
}

#define NIBBLE_D(i) "+f"(d[i])
#define NIBBLE_D8(i) \
  NIBBLE_D(i), NIBBLE_D(i + 1), NIBBLE_D(i + 2), NIBBLE_D(i + 3), NIBBLE_D(i + 4), NIBBLE_D(i + 5), NIBBLE_D(i + 6), NIBBLE_D(i + 7)
#define NIBBLE_NAMES16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NIBBLE_NAMES32 \
  NIBBLE_NAMES16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NIBBLE_NAMES64                                                                                             \
  NIBBLE_NAMES32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50" \
                 ", %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// D[64, N] += A[64, 16] B[16, N], bf16: rows of B in shared memory are steps of k (across_tile).
template <int N>
__device__ __forceinline__ void wgmma_bf16_across(float (&d)[N / 2], const std::uint32_t (&a)[4], std::uint64_t b) {
#if defined(NIBBLE_SM90A)
  if constexpr (N == 32) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" NIBBLE_NAMES16
                 "}, {%16, %17, %18, %19}, %20, 1, 1, 1, 1;"
                 : NIBBLE_D8(0), NIBBLE_D8(8)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
                 : "memory");
  } else {
    static_assert(N == 128);
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NIBBLE_NAMES64
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : NIBBLE_D8(0), NIBBLE_D8(8), NIBBLE_D8(16), NIBBLE_D8(24), NIBBLE_D8(32), NIBBLE_D8(40), NIBBLE_D8(48),
                   NIBBLE_D8(56)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
                 : "memory");
  }
#endif
}
// D[64, 64] += A[64, 8] B[64, 8]^T, tf32: what lies below a float's upper 19 bits is ignored. Of A lane 4 g + p of warp w
// has rows 16 w + g, then + 8, of column p, then the same of column p + 4; B K-major, a row of 32 columns.
__device__ __forceinline__ void wgmma_tf32(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b) {
#if defined(NIBBLE_SM90A)
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {" NIBBLE_NAMES32 "}, {%32, %33, %34, %35}, %36, 1, 1, 1;"
               : NIBBLE_D8(0), NIBBLE_D8(8), NIBBLE_D8(16), NIBBLE_D8(24)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
               : "memory");
#endif
}

// num::delta_tf32.
__device__ __forceinline__ std::uint32_t tf32_bits(float x) {
  std::uint32_t bits = 0;
#if defined(NIBBLE_BULK_COPY)
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
#endif
  return bits;
}

#undef NIBBLE_D
#undef NIBBLE_D8
#undef NIBBLE_NAMES16
#undef NIBBLE_NAMES32
#undef NIBBLE_NAMES64

// Four 8 x 8 matrices of 16-bit elements, transposed: lanes 8 i .. 8 i + 7 give the rows of the i-th, lane 4 g + p has rows
// 2 p and 2 p + 1 of column g.
__device__ __forceinline__ uint4 load_transposed(std::uint32_t row) {
  uint4 v{};
#if defined(NIBBLE_BULK_COPY)
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(row)
               : "memory");
#endif
  return v;
}
__device__ __forceinline__ void store_transposed(std::uint32_t row, const uint4& v) {
#if defined(NIBBLE_BULK_COPY)
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
#endif
}

}  // namespace nibble::cuda
