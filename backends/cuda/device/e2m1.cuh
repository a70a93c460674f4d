// e2m1.cuh: two float32 to two e2m1 codes, as num::float_to_e2m1 rounds.
#pragma once

#include <cstdint>

#include "backends/cuda/device/mma_fp4.cuh"

namespace nibble::cuda {

// Bits 0..3: of `low`, 4..7: of `high`. The instruction makes 6 of NaN, the codec 0 of the NaN's sign.
template <MmaPath Path>
__device__ __forceinline__ std::uint32_t to_e2m1x2(float low, float high) {
#if defined(NIBBLE_NATIVE_FP4)
  if constexpr (Path == MmaPath::native) {
    const auto number = [](float v) {
      return v == v ? v : num::bit_cast<float>(num::bit_cast<std::uint32_t>(v) & 0x80000000u);
    };
    std::uint32_t codes;
    asm("{\n"
        ".reg .b8 two;\n"
        "cvt.rn.satfinite.e2m1x2.f32 two, %1, %2;\n"
        "cvt.u32.u8 %0, two;\n"
        "}"
        : "=r"(codes)
        : "f"(number(high)), "f"(number(low)));
    return codes;
  }
#endif
  return num::float_to_e2m1(low) | static_cast<std::uint32_t>(num::float_to_e2m1(high)) << 4;
}

}  // namespace nibble::cuda
