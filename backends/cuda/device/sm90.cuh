// sm90.cuh: instructions of sm_90a that the tuned kernels stand on: wgmma with A in registers, and, on sm_120a too,
// barriers in shared memory, bulk copies and registers that go from warps to others. Elsewhere they are declared and
// do nothing: such a kernel is never launched.
//   wgmma   D[64, N] += A[64, 16] B[N, 16]^T, bf16, float32 sums; lane 4 g + p of warp w holds, of A, row
//           16 w + g as mma.cuh's fragment, of D rows 16 w + g and + 8, columns 8 j + 2 p and + 1
//   B       K-major in shared memory, swizzle of 128 bytes: a row has 64 columns of k in chunks of 16 bytes,
//           chunk c of row r at place c ^ (r & 7); eight rows are 1,024 bytes, aligned to that
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define NIBBLE_SM90A 1
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_FEAT_SM120_ALL)
#define NIBBLE_BULK_COPY 1
#endif

namespace nibble::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// Bits 0: address / 16; 16: leading offset, unused here; 32: offset of the next eight rows / 16; 62: swizzle.
__device__ __forceinline__ std::uint32_t first_half(std::uint32_t address) { return address >> 4 | 1u << 16; }
__device__ __forceinline__ std::uint64_t swizzled_tile(std::uint32_t first_half) {
  return static_cast<std::uint64_t>(64u | 1u << 30) << 32 | first_half;
}
constexpr std::uint32_t kStepOfK = 2;  // 16 columns: 32 bytes, in a descriptor's units

// A barrier in shared memory: a phase ends when `count` arrivals and all announced bytes came.
struct Barrier {
  std::uint32_t at;
  __device__ void init(std::uint32_t count) const {
#if defined(NIBBLE_BULK_COPY)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
#endif
  }
  __device__ void arrive() const {
#if defined(NIBBLE_BULK_COPY)
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
#endif
  }
  __device__ void arrive_expecting(std::uint32_t bytes) const {
#if defined(NIBBLE_BULK_COPY)
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
#endif
  }
  // Until the phase of this parity has ended.
  __device__ void wait(std::uint32_t parity) const {
#if defined(NIBBLE_BULK_COPY)
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(at), "r"(parity)
        : "memory");
#endif
  }
};

// Barriers that were just set up become visible to the copy engine.
__device__ __forceinline__ void fence_barriers() {
#if defined(NIBBLE_BULK_COPY)
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
#endif
}

// The block's own shared memory. Said to be the cluster's, ptxas for sm_120a looks at each address and calls a function
// to complain, for which it gives up moving registers.
#if defined(NIBBLE_SM90A)
#define NIBBLE_COPY_TO "shared::cluster"
#else
#define NIBBLE_COPY_TO "shared::cta"
#endif
// A multiple of 16 bytes, both ends aligned to 16.
__device__ __forceinline__ void copy_bytes(std::uint32_t to, const void* from, std::uint32_t bytes, Barrier done) {
#if defined(NIBBLE_BULK_COPY)
  asm volatile("cp.async.bulk." NIBBLE_COPY_TO ".global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(done.at)
               : "memory");
#endif
}
// A box of a tensor map, at (column, row); what lies outside the tensor is zero.
__device__ __forceinline__ void copy_box(std::uint32_t to, const void* map, int column, int row, Barrier done) {
#if defined(NIBBLE_BULK_COPY)
  asm volatile(
      "cp.async.bulk.tensor.2d." NIBBLE_COPY_TO ".global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(done.at)
      : "memory");
#endif
}

// Boxes side by side, from tile `tile` of the columns on (MappedMatrix::box_tiles).
__device__ __forceinline__ void copy_boxes(std::uint32_t to, const void* map, int tile, int row, Barrier done) {
#if defined(NIBBLE_BULK_COPY)
  asm volatile(
      "cp.async.bulk.tensor.3d." NIBBLE_COPY_TO ".global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to), "l"(map), "r"(0), "r"(row), "r"(tile), "r"(done.at)
      : "memory");
#endif
}

// 16 bytes by this thread, both ends aligned to 16; of the second form `bytes` are read and the others are zero. Those
// that were begun since the last commit are a group, and groups end in order.
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from) {
#if defined(NIBBLE_BULK_COPY)
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#endif
}
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from, std::uint32_t bytes) {
#if defined(NIBBLE_BULK_COPY)
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
#endif
}
__device__ __forceinline__ void copies_commit() {
#if defined(NIBBLE_BULK_COPY)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Until at most `Pending` groups of this thread are on their way.
template <int Pending>
__device__ __forceinline__ void copies_wait() {
#if defined(NIBBLE_BULK_COPY)
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#endif
}
// What this thread wrote to shared memory becomes visible to wgmma.
__device__ __forceinline__ void fence_shared_writes() {
#if defined(NIBBLE_BULK_COPY)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Four 8 x 8 matrices of 16-bit elements; lanes 8 i .. 8 i + 7 give the rows of the i-th.
__device__ __forceinline__ uint4 load_matrices(std::uint32_t row) {
  uint4 v{};
#if defined(NIBBLE_BULK_COPY)
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(row));
#endif
  return v;
}

template <int Registers>
__device__ __forceinline__ void give_registers() {
#if defined(NIBBLE_BULK_COPY)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
#endif
}
template <int Registers>
__device__ __forceinline__ void take_registers() {
#if defined(NIBBLE_BULK_COPY)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
#endif
}

// Registers that were written become visible to wgmma.
__device__ __forceinline__ void wgmma_fence() {
#if defined(NIBBLE_SM90A)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wgmma_commit() {
#if defined(NIBBLE_SM90A)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Until at most `Pending` committed groups run.
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
#if defined(NIBBLE_SM90A)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
#endif
}
// Values are computed before, and used after this point: the compiler knows nothing of what wgmma reads and
// writes later.
template <int N>
__device__ __forceinline__ void settle(float (&v)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(v[i])::"memory");
}
__device__ __forceinline__ void settle(std::uint32_t (&v)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(v[i])::"memory");
}

#define NIBBLE_ACC4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define NIBBLE_ACC8(i) NIBBLE_ACC4(i), NIBBLE_ACC4(i + 4)
#define NIBBLE_ACC16(i) NIBBLE_ACC8(i), NIBBLE_ACC8(i + 8)
#define NIBBLE_ACC32(i) NIBBLE_ACC16(i), NIBBLE_ACC16(i + 16)
#define NIBBLE_ACC64(i) NIBBLE_ACC32(i), NIBBLE_ACC32(i + 32)
#define NIBBLE_ACC128(i) NIBBLE_ACC64(i), NIBBLE_ACC64(i + 64)
#define NIBBLE_TEN(t)                                                                                      \
  ", %" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9"
#define NIBBLE_LIST4 "%0, %1, %2, %3"
#define NIBBLE_LIST8 NIBBLE_LIST4 ", %4, %5, %6, %7"
#define NIBBLE_LIST10 NIBBLE_LIST8 ", %8, %9"
#define NIBBLE_LIST16 NIBBLE_LIST10 ", %10, %11, %12, %13, %14, %15"
#define NIBBLE_LIST32 NIBBLE_LIST10 NIBBLE_TEN(1) NIBBLE_TEN(2) ", %30, %31"
#define NIBBLE_LIST64 \
  NIBBLE_LIST10 NIBBLE_TEN(1) NIBBLE_TEN(2) NIBBLE_TEN(3) NIBBLE_TEN(4) NIBBLE_TEN(5) ", %60, %61, %62, %63"
#define NIBBLE_LIST128                                                                                     \
  NIBBLE_LIST10 NIBBLE_TEN(1) NIBBLE_TEN(2) NIBBLE_TEN(3) NIBBLE_TEN(4) NIBBLE_TEN(5) NIBBLE_TEN(6)        \
      NIBBLE_TEN(7) NIBBLE_TEN(8) NIBBLE_TEN(9) NIBBLE_TEN(10) NIBBLE_TEN(11)                              \
          ", %120, %121, %122, %123, %124, %125, %126, %127"
// i0...: the numbers of the operands behind the sums.
#define NIBBLE_WGMMA(n, list, acc, i0, i1, i2, i3, i4)                                                       \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" list "}, {%" #i0 ", %" #i1 ", %" #i2 \
               ", %" #i3 "}, %" #i4 ", 1, 1, 1, 0;"                                                          \
               : acc                                                                                         \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)                                          \
               : "memory")

template <int N>
__device__ __forceinline__ void wgmma_bf16(float (&d)[N / 2], const std::uint32_t (&a)[4], std::uint64_t b) {
#if defined(NIBBLE_SM90A)
  if constexpr (N == 8) {
    NIBBLE_WGMMA(8, NIBBLE_LIST4, NIBBLE_ACC4(0), 4, 5, 6, 7, 8);
  } else if constexpr (N == 16) {
    NIBBLE_WGMMA(16, NIBBLE_LIST8, NIBBLE_ACC8(0), 8, 9, 10, 11, 12);
  } else if constexpr (N == 32) {
    NIBBLE_WGMMA(32, NIBBLE_LIST16, NIBBLE_ACC16(0), 16, 17, 18, 19, 20);
  } else if constexpr (N == 64) {
    NIBBLE_WGMMA(64, NIBBLE_LIST32, NIBBLE_ACC32(0), 32, 33, 34, 35, 36);
  } else if constexpr (N == 128) {
    NIBBLE_WGMMA(128, NIBBLE_LIST64, NIBBLE_ACC64(0), 64, 65, 66, 67, 68);
  } else {
    static_assert(N == 256);
    NIBBLE_WGMMA(256, NIBBLE_LIST128, NIBBLE_ACC128(0), 128, 129, 130, 131, 132);
  }
#endif
}

#undef NIBBLE_ACC4
#undef NIBBLE_ACC8
#undef NIBBLE_ACC16
#undef NIBBLE_ACC32
#undef NIBBLE_ACC64
#undef NIBBLE_ACC128
#undef NIBBLE_TEN
#undef NIBBLE_LIST4
#undef NIBBLE_LIST8
#undef NIBBLE_LIST10
#undef NIBBLE_LIST16
#undef NIBBLE_LIST32
#undef NIBBLE_LIST64
#undef NIBBLE_LIST128
#undef NIBBLE_WGMMA

}  // namespace nibble::cuda
