// weight_f16.cuh: images of f16 operands (WeightImage::values, path sm70), made for m8n8k4 (mma_f16.cuh)
//   codes   [N / 32][K / 32] units of 32 rows x 32 columns; in a unit lane l has row unit_row(l), all its columns:
//           [part][lane 32][16 B], nvfp4 one part, fp8 two of 16 columns, f16 four of 8. A warp's loads are whole, and
//           eight columns of a lane, as pairs, are the column operands of two instructions.
//     nvfp4  a word for 8 columns; pair j has columns 2 j and 2 j + 1, the even one in the low half. In each half
//            sign 15, 12, 14, 13 and magnitude 11..9, 8..6, 5..3, 2..0 of pairs 0, 1, 2, 3: few instructions take
//            them out. Codes took over the sign of their block scale.
//   scales  nvfp4: [N / 32][K / 64][lane 32][4 blocks of 16 columns], bytes: bits 14..7 of f16(scale * 2^7), whose
//           others are zero: every e4m3 magnitude, subnormal ones normalised, zero, and NaN as 0xFC
// Codes times block scales are exact in f16, and so is each step on the way to them.
#pragma once

#include <cstdint>

#include "backends/cuda/weight_image.h"
#include "core/numerics/codecs.h"

namespace nibble::cuda {

constexpr int kF16UnitRows = 32, kF16UnitCols = 32, kPartBytes = 512, kF16UnitScaleBytes = 128;

NIBBLE_HD constexpr int f16_parts(WeightFormat f) {
  return f == WeightFormat::nvfp4 ? 1 : f == WeightFormat::fp8_e4m3 ? 2 : 4;
}
NIBBLE_HD constexpr int f16_unit_bytes(WeightFormat f) { return f16_parts(f) * kPartBytes; }
NIBBLE_HD constexpr int unit_row(int lane) { return lane / 4 % 4 * 8 + lane % 4 + lane / 16 * 4; }
NIBBLE_HD constexpr int lane_of_row(int row) { return row / 8 % 4 * 4 + row % 4 + row / 4 % 2 * 16; }

NIBBLE_HD std::int64_t f16_unit(const WeightImage& w, std::int64_t n, std::int64_t k) {
  return n / kF16UnitRows * (w.padded_cols / kF16UnitCols) + k / kF16UnitCols;
}
NIBBLE_HD std::int64_t f16_scale_at(std::int64_t padded_cols, std::int64_t n, std::int64_t k) {
  return (n / kF16UnitRows * (padded_cols / 64) + k / 64) * kF16UnitScaleBytes +
         lane_of_row(static_cast<int>(n % kF16UnitRows)) * 4 + k % 64 / 16;
}

// Nibbles of 8 columns, the first lowest, to a word and one of them out of it.
NIBBLE_HD std::uint32_t m8n8k4_word(std::uint32_t codes) {
  std::uint32_t word = 0;
  for (int half = 0; half < 2; ++half) {
    std::uint32_t h = 0;
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t code = codes >> (4 * (2 * j + half));
      const int sign = j == 0 ? 15 : j == 1 ? 12 : j == 2 ? 14 : 13;
      h |= (code >> 3 & 1u) << sign | (code & 7u) << (9 - 3 * j);
    }
    word |= h << (16 * half);
  }
  return word;
}
NIBBLE_HD std::uint8_t m8n8k4_code(std::uint32_t word, int col) {
  const int j = col / 2, sign = j == 0 ? 15 : j == 1 ? 12 : j == 2 ? 14 : 13;
  const std::uint32_t h = word >> (16 * (col % 2));
  return static_cast<std::uint8_t>((h >> sign & 1u) << 3 | (h >> (9 - 3 * j) & 7u));
}
// Of an e4m3's magnitude.
NIBBLE_HD std::uint32_t f16_scale_of(std::uint32_t e4m3) {
  const std::uint32_t m = e4m3 & 0x7Fu;
  if (m == 0x7Fu) return 0xFCu;
  const float scale = num::e4m3_to_float(static_cast<std::uint8_t>(m));
  return static_cast<std::uint32_t>(num::float_to_f16(num::mul(scale, 0x1p7f))) >> 7;
}
NIBBLE_HD float f16_scale_to_float(std::uint32_t byte) {
  return num::mul(num::f16_to_float(static_cast<std::uint16_t>(byte << 7)), 0x1p-7f);
}

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

// Pairs of f16, each product rounded to nearest even; subnormals kept.
NIBBLE_HD std::uint32_t mul_f16_pair(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  std::uint32_t d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
#else
  const auto half = [](std::uint32_t v, int i) { return num::f16_to_float(static_cast<std::uint16_t>(v >> (16 * i))); };
  return f16_pair(num::mul(half(a, 0), half(b, 0)), num::mul(half(a, 1), half(b, 1)));
#endif
}

// f16(scale * 2^7) of byte `i`, twice.
NIBBLE_HD std::uint32_t f16_scale_twice(std::uint32_t bytes, int i) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(bytes, 0, i == 0 ? 0x0404 : i == 1 ? 0x1414 : i == 2 ? 0x2424 : 0x3434) >> 1;
#else
  return (bytes >> (8 * i) & 0xFFu) * 0x00800080u;
#endif
}
// Eight columns of a word times f16_scale_twice(). The bits of a code, in place, are f16 of its value * 2^-14: 2^7
// first, the scale brings the other.
NIBBLE_HD uint4 nvfp4_columns(std::uint32_t word, std::uint32_t scale) {
  constexpr std::uint32_t kTwo7 = 0x58005800u;
  const std::uint32_t third = (word << 1 & 0x80008000u) | (word << 6 & 0x0E000E00u);
  const std::uint32_t fourth = (word << 2 & 0x80008000u) | (word << 9 & 0x0E000E00u);
  return make_uint4(mul_f16_pair(mul_f16_pair(word & 0x8E008E00u, kTwo7), scale),
                    mul_f16_pair(mul_f16_pair(word << 3 & 0x8E008E00u, kTwo7), scale),
                    mul_f16_pair(mul_f16_pair(third, kTwo7), scale), mul_f16_pair(mul_f16_pair(fourth, kTwo7), scale));
}
// Two e4m3 codes in bits 8..15 and 24..31, none NaN. Shifted they are f16 of their values * 2^-8.
NIBBLE_HD std::uint32_t e4m3_f16_plain(std::uint32_t codes) {
  constexpr std::uint32_t kTwo8 = 0x5C005C00u;
  return mul_f16_pair((codes & 0x80008000u) | (codes >> 1 & 0x3F803F80u), kTwo8);
}
NIBBLE_HD uint2 fp8_columns(std::uint32_t four) {
#if defined(__CUDA_ARCH__)
  return make_uint2(e4m3_f16_plain(__byte_perm(four, 0, 0x1404)), e4m3_f16_plain(__byte_perm(four, 0, 0x3424)));
#else
  return make_uint2(e4m3_f16_plain((four & 0xFFu) << 8 | (four & 0xFF00u) << 16),
                    e4m3_f16_plain((four >> 16 & 0xFFu) << 8 | (four & 0xFF000000u)));
#endif
}

// Row n, columns k .. k + 3 (k a multiple of 4), as pairs, NaN codes included.
template <WeightFormat F>
NIBBLE_HD void weight4_f16(const WeightImage& w, std::int64_t n, std::int64_t k, std::uint32_t (&pair)[2]) {
  const std::byte* const unit = w.codes + f16_unit(w, n, k) * f16_unit_bytes(F);
  const int lane = lane_of_row(static_cast<int>(n % kF16UnitRows)), col = static_cast<int>(k % kF16UnitCols);
  if constexpr (F == WeightFormat::nvfp4) {
    const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(unit)[lane * 4 + col / 8];
    const auto scale = static_cast<std::uint32_t>(w.scales[f16_scale_at(w.padded_cols, n, k)]);
    const uint4 eight = nvfp4_columns(word, f16_scale_twice(scale, 0));
    pair[0] = col % 8 == 0 ? eight.x : eight.z;
    pair[1] = col % 8 == 0 ? eight.y : eight.w;
  } else if constexpr (F == WeightFormat::fp8_e4m3) {
    const std::uint32_t four =
        reinterpret_cast<const std::uint32_t*>(unit)[col / 16 * 128 + lane * 4 + col % 16 / 4];
    pair[0] = e4m3_f16_pair(four);
    pair[1] = e4m3_f16_pair(four >> 16);
  } else {
    const auto* two = reinterpret_cast<const std::uint32_t*>(unit) + col / 8 * 128 + lane * 4 + col % 8 / 2;
    pair[0] = two[0];
    pair[1] = two[1];
  }
}
// The operand of w[n, k].
NIBBLE_HD float weight_f16_value(const WeightImage& w, std::int64_t n, std::int64_t k) {
  const std::byte* const unit = w.codes + f16_unit(w, n, k) * f16_unit_bytes(w.format);
  const int lane = lane_of_row(static_cast<int>(n % kF16UnitRows)), col = static_cast<int>(k % kF16UnitCols);
  if (w.format == WeightFormat::nvfp4) {
    const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(unit)[lane * 4 + col / 8];
    return num::mul(num::e2m1_to_float(m8n8k4_code(word, col % 8)),
                    f16_scale_to_float(static_cast<std::uint32_t>(w.scales[f16_scale_at(w.padded_cols, n, k)])));
  }
  if (w.format == WeightFormat::fp8_e4m3) {
    return num::e4m3_to_float(static_cast<std::uint8_t>(unit[col / 16 * kPartBytes + lane * 16 + col % 16]));
  }
  return num::f16_to_float(reinterpret_cast<const std::uint16_t*>(unit)[col / 8 * 256 + lane * 8 + col % 8]);
}

}  // namespace nibble::cuda
