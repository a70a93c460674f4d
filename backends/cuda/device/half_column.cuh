// half_column.cuh: a column of the delta net's state in the registers of two lanes, for rows that come one by one.
#pragma once

#include "backends/cuda/device/rows.cuh"

namespace nibble::cuda {

// A column's share of a lane: half of its rows k, the first half in lanes 0 .. 15. `Anew`: what a row multiplies by is read
// from shared memory for each pass, for else it is kept from one to the next, in as many registers as S has.
template <int KeyDim, bool Anew>
struct HalfColumn {
  static constexpr int kRows = KeyDim / 2;
  float s[kRows];
  int lane;
  // f(s[k], of[k]) for the lane's k; `of`: 16 aligned bytes of shared memory.
  template <class F>
  __device__ __forceinline__ void each(const float* of, F f) {
    const float* const mine = of + lane / 16 * kRows;
    const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(mine));
#pragma unroll
    for (int k = 0; k < kRows; k += 4) {
      float4 v;
      if constexpr (Anew) {
        asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                     : "r"(address + static_cast<std::uint32_t>(k) * 4)
                     : "memory");
      } else {
        v = *reinterpret_cast<const float4*>(mine + k);
      }
      f(s[k], v.x), f(s[k + 1], v.y), f(s[k + 2], v.z), f(s[k + 3], v.w);
    }
  }
  // Chain over all k of s[k] * of[k], for both lanes: the second half goes on where the first ended.
  __device__ __forceinline__ float chain(const float* of) {
    float sum = 0.0f;
#pragma unroll(Anew ? 1 : 2)
    for (int turn = 0; turn < 2; ++turn) {
      const float before = __shfl_sync(0xFFFFFFFFu, sum, lane % 16);
      sum = turn == 0 || lane < 16 ? 0.0f : before;
      each(of, [&](float s_k, float of_k) { sum = num::fma(s_k, of_k, sum); });
    }
    return __shfl_sync(0xFFFFFFFFu, sum, lane % 16 + 16);
  }
};

}  // namespace nibble::cuda
