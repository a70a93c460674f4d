// fused_operand.h: what the chains of fused_group.h take for granted, whichever instructions compute them.
#pragma once

#include "backends/cpu/packed_weight.h"
#include "backends/cpu/simd.h"
#include "core/numerics/fused_dot.h"

namespace nibble::cpu::NIBBLE_ISA {

// The upper half of the least float that is no ordinary operand: infinity, 2^16 for f16.
template <int MinExponent>
constexpr std::int32_t kNotOrdinary = MinExponent == num::kF16MinExponent ? 0x4780 : 0x7F80;

template <int MinExponent>
NIBBLE_INLINE bool is_ordinary(float v) {
  return static_cast<std::int32_t>((num::bit_cast<std::uint32_t>(v) & 0x7FFFFFFFu) >> 16) <
         kNotOrdinary<MinExponent>;
}
// A 16-bit number twice in one word: broadcasting a word needs no shuffle, a half word does.
NIBBLE_INLINE std::int32_t twice(std::int32_t e) {
  return static_cast<std::int32_t>((static_cast<std::uint32_t>(e) & 0xFFFFu) * 0x10001u);
}

// What is left of a float of 24 bits.
template <int Bits>
constexpr std::uint32_t kKeptBits = ~((std::uint32_t{1} << (24 - Bits)) - 1);

// S beyond this: c might not fit, or rounding S might.
template <int G, int F>
constexpr std::int64_t kMostSum = 0x7FFFFF00 - (std::int64_t{1} << (F + 1));
template <int G, int F>
constexpr bool kSumFits = (std::int64_t{G} << (F + 2)) <= kMostSum<G, F>;

}  // namespace nibble::cpu::NIBBLE_ISA

