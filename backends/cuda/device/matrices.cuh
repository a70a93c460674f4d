// matrices.cuh: fragments of mma.cuh from tiles in shared memory, and copies into those, on any card. Where a card has no
// instruction for it, lanes read what the instruction would bring them.
#pragma once

#include "backends/cuda/device/sm90_delta.cuh"

namespace nibble::cuda {

// Four 8 x 8 matrices of bf16; lane l says where row l % 8 of matrix l / 8 begins. Of each, lane 4 g + p gets (row g; columns
// 2p, 2p + 1), or with `Across` the transposed matrix's: (rows 2p, 2p + 1; column g).
template <bool Across>
__device__ __forceinline__ uint4 fragments_at(std::uint32_t row) {
#if defined(NIBBLE_BULK_COPY)
  return Across ? load_transposed(row) : load_matrices(row);
#else
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, p = lane % 4;
  std::uint32_t to[4];
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    if constexpr (Across) {
      const std::uint32_t first = __shfl_sync(~0u, row, 8 * m + 2 * p), second = __shfl_sync(~0u, row, 8 * m + 2 * p + 1);
      std::uint16_t low, high;
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(low) : "r"(first + static_cast<std::uint32_t>(g) * 2) : "memory");
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(high) : "r"(second + static_cast<std::uint32_t>(g) * 2) : "memory");
      to[m] = low | static_cast<std::uint32_t>(high) << 16;
    } else {
      const std::uint32_t first = __shfl_sync(~0u, row, 8 * m + g);
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(to[m]) : "r"(first + static_cast<std::uint32_t>(p) * 4) : "memory");
    }
  }
  return make_uint4(to[0], to[1], to[2], to[3]);
#endif
}

// 16 bytes by this thread, zeros where not `there`; done when copies_wait() and a barrier say so (sm90.cuh).
__device__ __forceinline__ void bring_16(std::uint32_t to, const void* from, bool there) {
#if defined(NIBBLE_BULK_COPY)
  copy_16(to, from, there ? 16u : 0u);
#else
  const uint4 v = there ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#endif
}

}  // namespace nibble::cuda
