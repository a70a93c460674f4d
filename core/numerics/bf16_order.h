// bf16_order.h: how profile bf16 adds up a linear layer.
//
// The order is that of a processor's tile unit (TDPBF16PS, Intel 64 and IA-32 Architectures Software Developer's
// Manual, volume 2), which the pair unit (VDPBF16PS) and plain fma can follow at their full speed:
//   even, odd   chains over a block of kBf16Block columns: fma of those at even and at odd places, ascending, each
//               from +0
//   total       total = total + (even + odd), blocks ascending, from +0
// Operands are bf16. Every fma and add rounds to nearest even; a subnormal operand counts as zero of its sign, and a
// result that is below 2^-126 after rounding (as if exponents had no end) becomes zero of its sign, as on those units.
// Columns are padded with +0 to whole blocks. tests/cpu/bf16_units_test.cpp compares the units with these functions.
#pragma once

#include <cstdint>

#include "core/numerics/codecs.h"
#include "core/numerics/scalar.h"

namespace nibble::num {

constexpr int kBf16Block = 32;

NIBBLE_HD bool is_subnormal(float x) {
  const std::uint32_t magnitude = bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu;
  return magnitude != 0 && magnitude < 0x00800000u;
}
NIBBLE_HD float flush(float x) {
  return is_subnormal(x) ? bit_cast<float>(bit_cast<std::uint32_t>(x) & 0x80000000u) : x;
}

// Of unquantised x, and of a bf16, f16 or f32 weight.
NIBBLE_HD float bf16_operand(float x) { return flush(bf16_to_float(float_to_bf16(flush(x)))); }

// Operands are not subnormal.
NIBBLE_HD float add_flush(float a, float b) { return flush(add(a, b)); }
NIBBLE_HD float fma_flush(float a, float b, float c) {
  const float r = fma(a, b, c);
  if (abs(r) != 0x1p-126f) return flush(r);
  // Rounded here with the spacing of subnormals, which is twice what it is below 2^-126 on the units: what is nearer
  // to zero than 2^-126 - 2^-151 is rounded to less than 2^-126 there. The product is exact in double.
  const double p = static_cast<double>(a) * b, s = p + c;
  const double rest = (p - (s - (s - p))) + (c - (s - p));  // what s lost (Knuth's two-sum)
  const double below = (s < 0 ? -s : s) - (0x1p-126 - 0x1p-151);
  return below + (s < 0 ? -rest : rest) < 0 ? bit_cast<float>(bit_cast<std::uint32_t>(r) & 0x80000000u) : r;
}

// One block, for tests and for who wants to read it as code: total after the block.
NIBBLE_HD float bf16_block(const float* x, const float* w, std::int64_t w_stride, float total) {
  float even = 0, odd = 0;
  for (int k = 0; k < kBf16Block; k += 2) {
    even = fma_flush(x[k], w[k * w_stride], even);
    odd = fma_flush(x[k + 1], w[(k + 1) * w_stride], odd);
  }
  return add_flush(total, add_flush(even, odd));
}

}  // namespace nibble::num
