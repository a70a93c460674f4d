// weight_f16.cuh: four neighbouring f16 operands of an image in the order of weight_decode.cuh. Codes times
// block scales are exact in f16; an image of unquantised values holds f16 already (WeightImage::values is f16).
#pragma once

#include <cstdint>

#include "backends/cuda/device/weight_decode.cuh"

namespace nibble::cuda {

NIBBLE_HD std::uint32_t f16_pair(float low, float high) {
  return num::float_to_f16(low) | static_cast<std::uint32_t>(num::float_to_f16(high)) << 16;
}
NIBBLE_HD std::uint32_t e2m1_f16_pair(std::uint32_t low, std::uint32_t high, float scale) {
  return f16_pair(num::mul(num::e2m1_to_float(static_cast<std::uint8_t>(low)), scale),
                  num::mul(num::e2m1_to_float(static_cast<std::uint8_t>(high)), scale));
}
NIBBLE_HD std::uint32_t e4m3_f16_pair(std::uint32_t two) {
  return f16_pair(num::e4m3_to_float(static_cast<std::uint8_t>(two)),
                  num::e4m3_to_float(static_cast<std::uint8_t>(two >> 8)));
}

// Row n, columns k .. k + 3 (k a multiple of 4), as pairs. Columns k and k + 2 lie in neighbouring lanes of a
// unit, at the same step and register.
template <WeightFormat F>
NIBBLE_HD void weight4_f16(const WeightImage& w, std::int64_t n, std::int64_t k, std::uint32_t (&pair)[2]) {
  const std::int64_t k_tiles = w.padded_cols / kTileCols;
  const std::byte* unit = w.codes + unit_index(n, k, k_tiles) * unit_bytes(F);
  const UnitPlace u = unit_place(static_cast<int>(n % kUnitRows), static_cast<int>(k % kTileCols));
  if constexpr (F == WeightFormat::nvfp4) {
    const float scale =
        num::e4m3_to_float(static_cast<std::uint8_t>(w.scales[scale_at(n, k, k_tiles)]));
    const auto* words = reinterpret_cast<const std::uint32_t*>(unit) + u.lane * 4 + u.step;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t word = words[4 * i] >> (4 * u.reg);
      pair[i] = e2m1_f16_pair(word & 15u, word >> 16 & 15u, scale);
    }
  } else if constexpr (F == WeightFormat::fp8_e4m3) {
    const auto* twos = reinterpret_cast<const std::uint16_t*>(unit + fp8_at(u));
#pragma unroll
    for (int i = 0; i < 2; ++i) pair[i] = e4m3_f16_pair(twos[8 * i]);
  } else {
    const auto* pairs = reinterpret_cast<const std::uint32_t*>(unit) + u.step * 128 + u.lane * 4 + u.reg;
#pragma unroll
    for (int i = 0; i < 2; ++i) pair[i] = pairs[4 * i];
  }
}

}  // namespace nibble::cuda
