// weight_decode.cuh: where an element of a weight image lies, and codes to bf16 operands. All products
// here are exact: e2m1 code * e4m3 scale needs 6 significant bits, so nothing depends on rounding.
//
// An image is cut into units of 16 rows x 64 columns, [N / 64][K / 64][4 units], a unit in the order of
// mma.cuh's A fragments of its four k-steps s, so that a warp's loads are whole and contiguous:
//   nvfp4  [lane 32][s 4] words; nibble j (0..3) is the low half of a[j], nibble 4 + j the high half
//   fp8    [s / 2][lane 32][s % 2][a 0..3] pairs of codes
//   bf16   [s 4][lane 32][a 0..3] pairs
//   fp8 for the FP8 unit (CodeOrder::k32)  [k32 2][lane 32][a 0..3] words of a warp's m64n8k32: four columns from 4 q of
//          row g, of row g + 8, then the same 16 columns on
//   nvfp4 for the FP4 unit (CodeOrder::k64)  [lane 32][a 0..3] words of one m16n8k64, as mma_fp4.cuh has them
// (Images of f16 operands: weight_f16.cuh.)
// nvfp4 block scales lie in the order of their units, [g 8][s 4][rows g, g+8] of each, behind all codes.
//   k64    [row 16][block 4] of a unit: a word is what a row's lane gives to the instruction
//   e4m3   as in the file, sign and NaN included (sm120)
//   e5m3   (sm90) each unit's behind its codes, so that one copy brings both; without sign and zero, which the codes took over: bits of bf16(scale * 2^119), less 0x7000, over
//          16; a NaN stays one. Codes and scales of two k-steps are arranged so that few instructions take them out:
//          codes   in each half of either word  sign 15, 12, 9 and magnitude 8..6, 5..3, 2..0 of a[0], a[1], a[2];
//                  of a[3] of both steps (A, B) bits 14, 13, 11, 10 hold A's two upper magnitude bits and B's in the
//                  first word, A's sign, A's lowest, B's sign, B's lowest in the second
//          scales  one word, its bytes rotated up by a nibble: step 0 of row g, step 1 of row g + 8, step 0 of
//                  row g + 8, step 1 of row g
#pragma once

#include <cstdint>

#include "backends/cuda/device/weight_f16.cuh"
#include "backends/cuda/weight_image.h"
#include "core/numerics/codecs.h"

namespace nibble::cuda {

constexpr int kUnitRows = 16, kTileRows = 64, kTileCols = 64;

// Bytes of a unit; unquantised weights become bf16.
NIBBLE_HD constexpr int unit_bytes(WeightFormat f) {
  return kUnitRows * kTileCols * 2 / (f == WeightFormat::nvfp4 ? 4 : f == WeightFormat::fp8_e4m3 ? 2 : 1);
}
constexpr int kUnitScaleBytes = kUnitRows * kTileCols / 16;
// From a unit's codes, or its scales, to the next one's.
NIBBLE_HD constexpr int code_stride(WeightFormat f, ScaleCode scales) {
  return unit_bytes(f) + (f == WeightFormat::nvfp4 && scales == ScaleCode::e5m3 ? kUnitScaleBytes : 0);
}
NIBBLE_HD constexpr int scale_stride(ScaleCode scales) {
  return scales == ScaleCode::e5m3 ? code_stride(WeightFormat::nvfp4, scales) : kUnitScaleBytes;
}

NIBBLE_HD std::int64_t unit_index(std::int64_t n, std::int64_t k, std::int64_t k_tiles) {
  return (n / kTileRows * k_tiles + k / kTileCols) * 4 + n % kTileRows / kUnitRows;
}

// In an image of gate and up, of `half` rows each, eights of rows take turns, so that a lane with rows g and g + 8 of a
// unit has gate and up of one output: which row of the two, up below gate, row n of the image is.
NIBBLE_HD std::int64_t gate_up_row(std::int64_t n, std::int64_t half) {
  return n % kUnitRows / 8 * half + n / kUnitRows * 8 + n % 8;
}

// Of element (row, col) in its unit.
struct UnitPlace {
  int step, lane, reg, half;
};
NIBBLE_HD UnitPlace unit_place(int row, int col) {
  const int k = col % 16;
  return {col / 16, row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2, k % 2};
}
// In elements: nibbles, bytes or bf16.
NIBBLE_HD int nvfp4_at(UnitPlace u) { return (u.lane * 4 + u.step) * 8 + u.reg + 4 * u.half; }
NIBBLE_HD int fp8_at(UnitPlace u) {
  return u.step / 2 * 512 + u.lane * 16 + u.step % 2 * 8 + u.reg * 2 + u.half;
}
NIBBLE_HD int bf16_at(UnitPlace u) { return u.step * 256 + u.lane * 8 + u.reg * 2 + u.half; }
// CodeOrder::k32, of element (row, col) of a unit, in bytes.
NIBBLE_HD int fp8_k32_at(int row, int col) {
  return col / 32 * 512 + (row % 8 * 4 + col % 16 / 4) * 16 + (row / 8 + col % 32 / 16 * 2) * 4 + col % 4;
}
// CodeOrder::k64, of element (row, col) of a unit, in nibbles.
NIBBLE_HD int nvfp4_k64_at(int row, int col) {
  return ((row % 8 * 4 + col % 32 / 8) * 4 + row / 8 + col / 32 * 2) * 8 + col % 8;
}
NIBBLE_HD std::int64_t scale_at_k64(std::int64_t n, std::int64_t k, std::int64_t k_tiles) {
  return unit_index(n, k, k_tiles) * kUnitScaleBytes + n % kUnitRows * 4 + k % kTileCols / 16;
}
NIBBLE_HD std::int64_t scale_at(std::int64_t n, std::int64_t k, std::int64_t k_tiles, ScaleCode code) {
  return unit_index(n, k, k_tiles) * scale_stride(code) + n % 8 * 8 + k % kTileCols / 16 * 2 + n % kUnitRows / 8;
}

// Words of nibbles of two k-steps, arranged.
NIBBLE_HD void arrange(std::uint32_t (&words)[2]) {
  std::uint32_t all[2] = {0, 0};
  for (int half = 0; half < 32; half += 16) {
    const std::uint32_t a = words[0] >> half, b = words[1] >> half;
    all[0] |= ((a & 0x4000u) | (a & 0x2000u) | (b & 0x6000u) >> 3) << half;
    all[1] |= ((a & 0x8000u) >> 1 | (a & 0x1000u) << 1 | (b & 0x8000u) >> 4 | (b & 0x1000u) >> 2) << half;
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t h = words[i] >> half;
      all[i] |= ((h & 8u) << 12 | (h & 7u) << 6 | (h & 0x80u) << 5 | (h & 0x70u) >> 1 | (h & 0x800u) >> 2 |
                 (h & 0x700u) >> 8)
                << half;
    }
  }
  words[0] = all[0];
  words[1] = all[1];
}
// What a[3] of both steps is made of: bits of step 0 as those of a[0] lie, of step 1 as those of a[1].
NIBBLE_HD std::uint32_t arranged_rest(std::uint32_t first, std::uint32_t second) {
#if defined(__CUDA_ARCH__)
  std::uint32_t magnitudes, all;  // each selects by a mask: one instruction
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(magnitudes) : "r"(0x01B001B0u), "r"(first >> 6), "r"(second >> 7));
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(all) : "r"(0x90009000u), "r"(second << 1), "r"(magnitudes));
  return all;
#else
  return (first >> 6 & 0x01B001B0u) | (second >> 7 & 0x00480048u) | (second << 1 & 0x90009000u);
#endif
}
// Code of a[reg] of step `step` (0 or 1) in half `half` of an arranged pair.
NIBBLE_HD std::uint8_t arranged_code(const std::uint32_t* pair, int step, int reg, int half) {
  const std::uint32_t word = reg == 3 ? arranged_rest(pair[0], pair[1]) << (3 * step) : pair[step] << (3 * reg);
  const std::uint32_t h = word >> (16 * half);
  return static_cast<std::uint8_t>((h >> 12 & 8u) | (h >> 6 & 7u));
}
// e5m3 bytes [step][row g, g + 8], arranged.
NIBBLE_HD std::uint32_t arranged_scales(const std::uint8_t* bytes) {
  const std::uint32_t word = bytes[0] | static_cast<std::uint32_t>(bytes[3]) << 8 |
                             static_cast<std::uint32_t>(bytes[1]) << 16 | static_cast<std::uint32_t>(bytes[2]) << 24;
  return word << 4 | word >> 28;
}
NIBBLE_HD std::uint32_t arranged_scale(std::uint32_t word, int step, int lower) {
  const int at = step == 0 ? 4 + 16 * lower : 28 - 16 * lower;
  return (word >> at | (at == 0 ? 0u : word << (32 - at))) & 0xFFu;
}
// Of an e4m3's magnitude; zero becomes 1.
NIBBLE_HD std::uint32_t e5m3_of(std::uint32_t e4m3) {
  const std::uint32_t m = e4m3 & 0x7Fu;
  if (m == 0x7Fu) return 0xFCu;
  const float v = m == 0 ? 1.0f : num::e4m3_to_float(static_cast<std::uint8_t>(m));
  return (num::bit_cast<std::uint32_t>(v) >> 20) + (119u << 3) - (0x7000u >> 4);
}
// scale * 2^-7.
NIBBLE_HD float e5m3_to_unit(std::uint32_t byte) {
  return num::mul(num::bf16_to_float(static_cast<std::uint16_t>((byte << 4) + 0x7000u)), 0x1p-126f);
}

// The operand of w[n, k].
NIBBLE_HD float weight_value(const WeightImage& w, std::int64_t n, std::int64_t k) {
  if (w.values == DType::f16) return weight_f16_value(w, n, k);
  const std::int64_t k_tiles = w.padded_cols / kTileCols;
  const std::byte* unit = w.codes + unit_index(n, k, k_tiles) * code_stride(w.format, w.scale_code);
  const UnitPlace place =
      unit_place(static_cast<int>(n % kUnitRows), static_cast<int>(k % kTileCols));
  if (w.format == WeightFormat::nvfp4 && w.scale_code == ScaleCode::e5m3) {
    const auto* pair = reinterpret_cast<const std::uint32_t*>(unit) + place.lane * 4 + place.step / 2 * 2;
    const auto* scales = reinterpret_cast<const std::uint32_t*>(w.scales + scale_at(n, k, k_tiles, w.scale_code) / 4 * 4);
    const int step = place.step % 2;
    return num::mul(num::e2m1_to_float(arranged_code(pair, step, place.reg, place.half)),
                    e5m3_to_unit(arranged_scale(*scales, step, place.reg % 2)));
  }
  if (w.format == WeightFormat::nvfp4) {
    const bool k64 = w.order == CodeOrder::k64;
    const int at = k64 ? nvfp4_k64_at(static_cast<int>(n % kUnitRows), static_cast<int>(k % kTileCols))
                       : nvfp4_at(place);
    const std::byte scale = w.scales[k64 ? scale_at_k64(n, k, k_tiles) : scale_at(n, k, k_tiles, w.scale_code)];
    const auto two = static_cast<std::uint8_t>(unit[at / 2]);
    const auto code = static_cast<std::uint8_t>(two >> (at % 2 * 4) & 15);
    return num::mul(num::e2m1_to_float(code), num::e4m3_to_float(static_cast<std::uint8_t>(scale)));
  }
  if (w.format == WeightFormat::fp8_e4m3) {
    const int at = w.order == CodeOrder::k32
                       ? fp8_k32_at(static_cast<int>(n % kUnitRows), static_cast<int>(k % kTileCols))
                       : fp8_at(place);
    return num::e4m3_to_float(static_cast<std::uint8_t>(unit[at]));
  }
  return num::bf16_to_float(reinterpret_cast<const std::uint16_t*>(unit)[bf16_at(place)]);
}

// Pairs of bf16, each product rounded to nearest even; subnormals kept.
NIBBLE_HD std::uint32_t mul_bf16_pair(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  std::uint32_t d;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
#else
  const float low = num::mul(num::bit_cast<float>(a << 16), num::bit_cast<float>(b << 16));
  const float high =
      num::mul(num::bit_cast<float>(a & 0xFFFF0000u), num::bit_cast<float>(b & 0xFFFF0000u));
  return num::float_to_bf16(low) | static_cast<std::uint32_t>(num::float_to_bf16(high)) << 16;
#endif
}

// Two e4m3 codes, in bits 8..15 and 24..31. Their magnitudes, shifted, are bf16 of 1/2^120 the value,
// subnormals too; the NaN code would become 480.
NIBBLE_HD std::uint32_t e4m3_pair(std::uint32_t codes) {
  constexpr std::uint32_t kTwo120 = 0x7B807B80u;
  const std::uint32_t magnitude = (codes & 0x7F007F00u) >> 4;
  const std::uint32_t nan = ((magnitude + 0x00100010u) & 0x08000800u) >> 11;  // 1 in each half
  return mul_bf16_pair((codes & 0x80008000u) | magnitude, kTwo120) | nan * 0x7FFFu;
}
NIBBLE_HD std::uint32_t e4m3_twice(std::uint32_t code) { return e4m3_pair(code * 0x01000100u); }
// Two adjacent bytes.
NIBBLE_HD std::uint32_t e4m3_adjacent(std::uint32_t two) {
  return e4m3_pair((two & 0xFFu) << 8 | (two & 0xFF00u) << 16);
}

// Two e2m1 codes, nibbles j of the word's halves, times a pair of scales. The bits of a code, shifted,
// are bf16 of 1/2^126 the value.
template <int J>
NIBBLE_HD std::uint32_t e2m1_pair(std::uint32_t word, std::uint32_t scales) {
  constexpr std::uint32_t kTwo126 = 0x7E807E80u;
  const std::uint32_t sign = word << (12 - 4 * J) & 0x80008000u;
  std::uint32_t magnitude;
  if constexpr (J < 2) {
    magnitude = word << (6 - 4 * J) & 0x01C001C0u;
  } else {
    magnitude = word >> (4 * J - 6) & 0x01C001C0u;
  }
  return mul_bf16_pair(mul_bf16_pair(sign | magnitude, kTwo126), scales);
}

// The A fragment of one k-step: 8 codes of a lane; scales: bytes of rows g and g + 8.
NIBBLE_HD void nvfp4_fragment(std::uint32_t word, std::uint32_t scales, std::uint32_t (&a)[4]) {
  const std::uint32_t upper = e4m3_twice(scales & 0xFFu), lower = e4m3_twice(scales >> 8 & 0xFFu);
  a[0] = e2m1_pair<0>(word, upper);
  a[1] = e2m1_pair<1>(word, lower);
  a[2] = e2m1_pair<2>(word, upper);
  a[3] = e2m1_pair<3>(word, lower);
}
// The word of step 2 h + `step` (0, 1) in the order of k16, from the bytes of columns 32 h + 8 i + 2 q and + 1,
// i = 0..3, of rows g (`upper`) and g + 8.
NIBBLE_HD std::uint32_t k16_word(std::uint32_t upper, std::uint32_t lower, int step) {
  const std::uint32_t u = upper >> (16 * (step % 2)), l = lower >> (16 * (step % 2));
  return (u & 0x0F0Fu) | (l & 0x0F0Fu) << 4 | ((u >> 4 & 0x0F0Fu) | (l & 0xF0F0u)) << 16;
}
// bf16(scale * 2^119) of rows g and g + 8 in step `Step` of an arranged word.
template <int Step>
NIBBLE_HD std::uint32_t arranged_scale_pair(std::uint32_t word) {
  const std::uint32_t there = Step == 0 ? word : word << 8 | word >> 24;
#if defined(__CUDA_ARCH__)
  std::uint32_t pair;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(pair) : "r"(there), "r"(0x0FF00FF0u), "r"(0x70007000u));
  return pair;
#else
  return (there & 0x0FF00FF0u) | 0x70007000u;
#endif
}
// A pair times one bf16 of another. The device's multiplication takes either half as it is.
template <int Half>
NIBBLE_HD std::uint32_t mul_bf16_half(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  std::uint32_t twice;  // so written no instruction is left of it
  if constexpr (Half == 0) {
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low}; }" : "=r"(twice) : "r"(b));
  } else {
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high}; }" : "=r"(twice) : "r"(b));
  }
  return mul_bf16_pair(a, twice);
#else
  return mul_bf16_pair(a, (b >> (16 * Half) & 0xFFFFu) * 0x00010001u);
#endif
}
// The same as nvfp4_fragment from an arranged pair of words: operands times 2^-7. The bits of a code are bf16 of
// 1/2^126 the value.
template <int Step>
NIBBLE_HD void arranged_fragment(std::uint32_t first, std::uint32_t second, std::uint32_t scales,
                                 std::uint32_t (&a)[4]) {
  constexpr std::uint32_t kCode = 0x81C081C0u;
  const std::uint32_t by = arranged_scale_pair<Step>(scales), word = Step == 0 ? first : second;
  a[0] = mul_bf16_half<0>(word & kCode, by);
  a[1] = mul_bf16_half<1>(word << 3 & kCode, by);
  a[2] = mul_bf16_half<0>(word << 6 & kCode, by);
  a[3] = mul_bf16_half<1>(arranged_rest(first, second) << (3 * Step) & kCode, by);
}
// `low`: codes of a[0] and a[1], `high`: of a[2] and a[3].
NIBBLE_HD void fp8_fragment(std::uint32_t low, std::uint32_t high, std::uint32_t (&a)[4]) {
  a[0] = e4m3_adjacent(low);
  a[1] = e4m3_adjacent(low >> 16);
  a[2] = e4m3_adjacent(high);
  a[3] = e4m3_adjacent(high >> 16);
}

}  // namespace nibble::cuda
