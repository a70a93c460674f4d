// wgmma.cuh: the sm_90a instructions that wgmma_test.cu measures. Every format has 32 bytes of k in
// one instruction (bf16, f16: k16, e4m3: k32, tf32: k8), and fragments are the same in bytes: lane
// 4 g + p holds
//   a: bytes 4p..4p+3 of row g, the same of row g+8, bytes 16+4p..16+4p+3 of row g, the same of row
//   g+8 b: bytes 4p.. and 16+4p.. of column g (mma.sync only; wgmma has B in shared memory) c: (row
//   g; columns 8j+2p, 8j+2p+1)  (row g+8; same), j = 0...N/8-1; warp w of wgmma has rows 16w...
// Shared operands are K-major with a swizzle of 128 bytes: a row has 128 bytes (four steps of k) in
// chunks of 16; chunk c of row r lies in place c ^ (r & 7). Eight rows are 1,024 bytes, aligned to
// that; a step of k is 32 bytes further.
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define NIBBLE_HAVE_WGMMA 1
#endif

namespace nibble::test {

enum class Format { bf16, f16, e4m3, tf32 };

constexpr int kStepBytes = 32;
constexpr int kRowBytes = 128;

constexpr int tile_bytes(int rows, int steps) {
  return (steps + 3) / 4 * rows * kRowBytes;
}
constexpr int step_offset(int rows, int step) {
  return step / 4 * rows * kRowBytes + step % 4 * kStepBytes;
}
// Where 16-byte half `half` of a row's step goes.
constexpr int chunk_offset(int rows, int row, int step, int half) {
  return step / 4 * rows * kRowBytes + row * kRowBytes + ((step % 4 * 2 + half) ^ (row & 7)) * 16;
}

#if defined(NIBBLE_HAVE_WGMMA)

// Bits 0: address / 16; 16: leading offset / 16 (not used by swizzled K-major tiles); 32: offset of
// the next eight rows / 16; 62: 1 = swizzle of 128 bytes.
__device__ inline std::uint64_t descriptor(std::uint32_t address) {
  return static_cast<std::uint64_t>((address & 0x3FFFFu) >> 4) | 1ull << 16 |
         static_cast<std::uint64_t>(8 * kRowBytes >> 4) << 32 | 1ull << 62;
}

#define NIBBLE_ACC4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define NIBBLE_ACC16(i) NIBBLE_ACC4(i), NIBBLE_ACC4(i + 4), NIBBLE_ACC4(i + 8), NIBBLE_ACC4(i + 12)
#define NIBBLE_ACC32(i) NIBBLE_ACC16(i), NIBBLE_ACC16(i + 16)
#define NIBBLE_ACC128(i) \
  NIBBLE_ACC32(i), NIBBLE_ACC32(i + 32), NIBBLE_ACC32(i + 64), NIBBLE_ACC32(i + 96)
#define NIBBLE_TEN(t)                                                                      \
  ", %" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t \
  "8, %" #t "9"
#define NIBBLE_LIST4 "%0, %1, %2, %3"
#define NIBBLE_LIST10 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9"
#define NIBBLE_LIST32 NIBBLE_LIST10 NIBBLE_TEN(1) NIBBLE_TEN(2) ", %30, %31"
#define NIBBLE_LIST128                                                                \
  NIBBLE_LIST10 NIBBLE_TEN(1) NIBBLE_TEN(2) NIBBLE_TEN(3) NIBBLE_TEN(4) NIBBLE_TEN(5) \
      NIBBLE_TEN(6) NIBBLE_TEN(7) NIBBLE_TEN(8) NIBBLE_TEN(9) NIBBLE_TEN(10)          \
          NIBBLE_TEN(11) ", %120, %121, %122, %123, %124, %125, %126, %127"

// i0... : the numbers of the operands behind the accumulators.
#define NIBBLE_WGMMA_RS(shape, list, acc, trans, i0, i1, i2, i3, i4, i5)                       \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #i5                                        \
               ", 0;\n"                                                                        \
               "wgmma.mma_async.sync.aligned." shape " {" list "}, {%" #i0 ", %" #i1 ", %" #i2 \
               ", %" #i3 "}, %" #i4 ", p, 1, 1" trans ";\n}"                                   \
               : acc                                                                           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(scale_d)              \
               : "memory")
#define NIBBLE_WGMMA_SS(shape, list, acc, trans, i0, i1, i2)                        \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #i2                             \
               ", 0;\n"                                                             \
               "wgmma.mma_async.sync.aligned." shape " {" list "}, %" #i0 ", %" #i1 \
               ", p, 1, 1" trans ";\n}"                                             \
               : acc                                                                \
               : "l"(a), "l"(b), "r"(scale_d)                                       \
               : "memory")

template <Format F, int N>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], const std::uint32_t (&a)[4],
                                      std::uint64_t b, int scale_d) {
  if constexpr (F == Format::bf16 && N == 64) {
    NIBBLE_WGMMA_RS("m64n64k16.f32.bf16.bf16", NIBBLE_LIST32, NIBBLE_ACC32(0), ", 0", 32, 33, 34,
                    35, 36, 37);
  } else if constexpr (F == Format::bf16 && N == 256) {
    NIBBLE_WGMMA_RS("m64n256k16.f32.bf16.bf16", NIBBLE_LIST128, NIBBLE_ACC128(0), ", 0", 128, 129,
                    130, 131, 132, 133);
  } else {
    static_assert(F == Format::e4m3 && N == 8);
    NIBBLE_WGMMA_RS("m64n8k32.f32.e4m3.e4m3", NIBBLE_LIST4, NIBBLE_ACC4(0), "", 4, 5, 6, 7, 8, 9);
  }
}

template <Format F, int N>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], std::uint64_t a, std::uint64_t b,
                                      int scale_d) {
  if constexpr (F == Format::bf16 && N == 64) {
    NIBBLE_WGMMA_SS("m64n64k16.f32.bf16.bf16", NIBBLE_LIST32, NIBBLE_ACC32(0), ", 0, 0", 32, 33,
                    34);
  } else if constexpr (F == Format::bf16 && N == 256) {
    NIBBLE_WGMMA_SS("m64n256k16.f32.bf16.bf16", NIBBLE_LIST128, NIBBLE_ACC128(0), ", 0, 0", 128,
                    129, 130);
  } else {
    static_assert(F == Format::e4m3 && N == 8);
    NIBBLE_WGMMA_SS("m64n8k32.f32.e4m3.e4m3", NIBBLE_LIST4, NIBBLE_ACC4(0), "", 4, 5, 6);
  }
}

template <Format F>
__device__ __forceinline__ void mma_sync(float (&d)[4], const std::uint32_t (&a)[4],
                                         std::uint32_t b0, std::uint32_t b1) {
#define NIBBLE_MMA(shape)                                                         \
  asm volatile("mma.sync.aligned." shape                                          \
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : NIBBLE_ACC4(0)                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (F == Format::bf16) {
    NIBBLE_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
  } else if constexpr (F == Format::f16) {
    NIBBLE_MMA("m16n8k16.row.col.f32.f16.f16.f32");
  } else {
    static_assert(F == Format::tf32);
    NIBBLE_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
  }
#undef NIBBLE_MMA
}

#endif  // NIBBLE_HAVE_WGMMA

// One block of 128 threads: A [Steps, 64, 32 bytes], B [Steps, N, 32 bytes], C and D [64, N], each
// block its own. All Steps instructions are in flight at once. Without `scale_d` the first one
// takes C as zero.
template <Format F, int N, int Steps, bool SharedA>
__global__ void __launch_bounds__(128) wgmma_kernel(const std::uint8_t* a, const std::uint8_t* b,
                                                    const float* c, float* d, int scale_d) {
#if defined(NIBBLE_HAVE_WGMMA)
  extern __shared__ std::uint8_t raw[];
  const auto start = static_cast<std::uint32_t>(__cvta_generic_to_shared(raw));
  const std::uint32_t tile_a = (start + 1023u) & ~1023u, tile_b = tile_a + tile_bytes(64, Steps);
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / 32 * 16 + thread % 32 / 4, p = thread % 4;
  a += static_cast<std::size_t>(blockIdx.x) * Steps * 64 * kStepBytes;
  b += static_cast<std::size_t>(blockIdx.x) * Steps * N * kStepBytes;
  c += static_cast<std::size_t>(blockIdx.x) * 64 * N;
  d += static_cast<std::size_t>(blockIdx.x) * 64 * N;

  const auto fill = [&](const std::uint8_t* from, std::uint32_t tile, int rows) {
    for (int i = thread; i < Steps * rows * 2; i += 128) {
      const int to = chunk_offset(rows, i / 2 % rows, i / 2 / rows, i % 2);
      *reinterpret_cast<uint4*>(raw + (tile - start) + to) =
          reinterpret_cast<const uint4*>(from)[i];
    }
  };
  if constexpr (SharedA) fill(a, tile_a, 64);
  fill(b, tile_b, N);
  asm volatile("fence.proxy.async.shared::cta;" ::
                   : "memory");  // wgmma reads through the other proxy
  __syncthreads();

  std::uint32_t fragment[Steps][4];
  for (int s = 0; s < Steps; ++s) {
    for (int i = 0; i < 4; ++i) {
      const int at = (s * 64 + row + i % 2 * 8) * kStepBytes + i / 2 * 16 + 4 * p;
      fragment[s][i] = *reinterpret_cast<const std::uint32_t*>(a + at);
    }
  }
  float acc[N / 2];
  for (int i = 0; i < N / 2; ++i) {
    acc[i] = c[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + 2 * p + i % 2];
  }
  for (float& v : acc) asm volatile("" : "+f"(v)::"memory");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int s = 0; s < Steps; ++s) {
    const std::uint64_t to_b = descriptor(tile_b + step_offset(N, s));
    const int keep = s == 0 ? scale_d : 1;
    if constexpr (SharedA) {
      wgmma<F, N>(acc, descriptor(tile_a + step_offset(64, s)), to_b, keep);
    } else {
      wgmma<F, N>(acc, fragment[s], to_b, keep);
    }
  }
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (float& v : acc) asm volatile("" : "+f"(v)::"memory");
  for (int i = 0; i < N / 2; ++i) {
    d[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + 2 * p + i % 2] = acc[i];
  }
#endif
}

// One block of 32 threads: A [16, 32 bytes], B [8, 32 bytes], C and D [16, 8].
template <Format F>
__global__ void mma_sync_kernel(const std::uint8_t* a, const std::uint8_t* b, const float* c,
                                float* d) {
#if defined(NIBBLE_HAVE_WGMMA)
  const int g = static_cast<int>(threadIdx.x) / 4, p = static_cast<int>(threadIdx.x) % 4;
  const auto word = [&](const std::uint8_t* from, int rows, int row, int half) {
    const std::size_t at =
        (static_cast<std::size_t>(blockIdx.x) * rows + row) * kStepBytes + half * 16 + 4 * p;
    return *reinterpret_cast<const std::uint32_t*>(from + at);
  };
  const std::uint32_t fragment[4] = {word(a, 16, g, 0), word(a, 16, g + 8, 0), word(a, 16, g, 1),
                                     word(a, 16, g + 8, 1)};
  const std::size_t top = static_cast<std::size_t>(blockIdx.x) * 128 + g * 8 + 2 * p,
                    low = top + 64;
  float acc[4] = {c[top], c[top + 1], c[low], c[low + 1]};
  mma_sync<F>(acc, fragment, word(b, 8, g, 0), word(b, 8, g, 1));
  d[top] = acc[0];
  d[top + 1] = acc[1];
  d[low] = acc[2];
  d[low + 1] = acc[3];
#endif
}

}  // namespace nibble::test
