// delta_products.cuh: the products of delta_pass.cu and delta_prepare.cu on two sorts of units, with the same fragments and
// the same bits: sums of lane 4 g + p of warp w are rows 16 w + g and + 8, columns 8 n + 2 p and + 1; a is the register
// operand; tiles lie in shared memory as delta_units.cuh says.
//   WgmmaUnits   a warpgroup's wgmma, which reads tiles itself and is on its way until it is waited for
//   MmaUnits     each warp's mma.sync, tiles by ldmatrix
#pragma once

#include "backends/cuda/device/mma.cuh"
#include "backends/cuda/device/sm90_delta.cuh"

namespace nibble::cuda {

struct WgmmaUnits {
  __device__ __forceinline__ static void fence() { wgmma_fence(); }
  __device__ __forceinline__ static void commit() { wgmma_commit(); }
  template <int Pending>
  __device__ __forceinline__ static void wait() {
    wgmma_wait<Pending>();
  }
  // d[., token] += a[., 16 s ..] tile[token, 16 s ..]: keys or queries of 64 tokens.
  template <class Tile>
  __device__ __forceinline__ static void tokens(float (&d)[32], const std::uint32_t (&a)[4], std::uint32_t tile, int s) {
    wgmma_bf16<64>(d, a, Tile::step(tile, s));
  }
  // d[., x] += a[., token 16 s ..] tile[token, x].
  template <class Tile, int KeyDim>
  __device__ __forceinline__ static void keys(float (&d)[KeyDim / 2], const std::uint32_t (&a)[4], std::uint32_t tile, int s) {
    wgmma_bf16_across<KeyDim>(d, a, Tile::rows_step(tile, s));
  }
  // d[., i] += a[., j of 8 m ..] A[i, j]: tf32, halves of 32 columns `half` bytes apart.
  __device__ __forceinline__ static void a_of(float (&d)[32], const std::uint32_t (&a)[4], std::uint32_t tile, int half, int m) {
    wgmma_tf32(d, a, tile_of<128>(tile + static_cast<std::uint32_t>(m / 4 * half + m % 4 * 32)));
  }
  // d[., i] += a[., j of 16 n ..] M[i, j].
  __device__ __forceinline__ static void m_of(float (&d)[32], const std::uint32_t (&a)[4], std::uint32_t tile, int n) {
    wgmma_bf16<64>(d, a, tile_of<128>(tile + static_cast<std::uint32_t>(n * 32)));
  }
};

__device__ __forceinline__ void mma_m16n8k8_tf32(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
#if defined(NIBBLE_NATIVE_MMA)
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

struct MmaUnits {
  __device__ __forceinline__ static void fence() {}
  __device__ __forceinline__ static void commit() {}
  template <int Pending>
  __device__ __forceinline__ static void wait() {}
  template <class Tile>
  __device__ __forceinline__ static void tokens(float (&d)[32], const std::uint32_t (&a)[4], std::uint32_t tile, int s) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // 16 tokens: the first eight with both halves of the columns, then the others
      const int row = i * 16 + lane / 16 * 8 + lane % 8, eight = 2 * s + lane / 8 % 2;
      two<false>(d, 8 * i, a, load_matrices(tile + Tile::at(row, eight)));
    }
  }
  template <class Tile, int KeyDim>
  __device__ __forceinline__ static void keys(float (&d)[KeyDim / 2], const std::uint32_t (&a)[4], std::uint32_t tile, int s) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < KeyDim / 16; ++n) {
      const int row = s * 16 + lane / 8 % 2 * 8 + lane % 8, eight = 2 * n + lane / 16;
      two<false>(d, 8 * n, a, load_transposed(tile + Tile::at(row, eight)));
    }
  }
  __device__ __forceinline__ static void a_of(float (&d)[32], const std::uint32_t (&a)[4], std::uint32_t tile, int half, int m) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i * 16 + lane / 16 * 8 + lane % 8, chunk = 2 * (m % 4) + lane / 8 % 2;
      two<true>(d, 8 * i, a,
                load_matrices(tile + static_cast<std::uint32_t>(m / 4 * half + row * 128 + (chunk ^ (row & 7)) * 16)));
    }
  }
  __device__ __forceinline__ static void m_of(float (&d)[32], const std::uint32_t (&a)[4], std::uint32_t tile, int n) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i * 16 + lane / 16 * 8 + lane % 8, chunk = 2 * n + lane / 8 % 2;
      two<false>(d, 8 * i, a, load_matrices(tile + static_cast<std::uint32_t>(row * 128 + (chunk ^ (row & 7)) * 16)));
    }
  }

 private:
  // Sums of 16 columns from d[at] on.
  template <bool Tf32, int N>
  __device__ __forceinline__ static void two(float (&d)[N], int at, const std::uint32_t (&a)[4], const uint4& b) {
    float(&low)[4] = *reinterpret_cast<float(*)[4]>(d + at);
    float(&high)[4] = *reinterpret_cast<float(*)[4]>(d + at + 4);
    if constexpr (Tf32) {
      mma_m16n8k8_tf32(low, a, b.x, b.y);
      mma_m16n8k8_tf32(high, a, b.z, b.w);
    } else {
      mma_m16n8k16_bf16<kMmaPath>(low, a, b.x, b.y);
      mma_m16n8k16_bf16<kMmaPath>(high, a, b.z, b.w);
    }
  }
};

}  // namespace nibble::cuda
