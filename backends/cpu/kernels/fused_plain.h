// fused_plain.h: the chains of fused_group.h in plain loops, which compilers turn into vectors.
#pragma once

#include "backends/cpu/kernels/fused_operand.h"

namespace nibble::cpu::NIBBLE_ISA {

constexpr int kZeroExponent = -8000;
constexpr int kNoTerm = -4000;  // below: every term is zero
constexpr int kMostExponent = 126;

struct TowardZero {  // no instruction here depends on a rounding mode
  TowardZero() {}
};

template <int MinExponent>
NIBBLE_INLINE std::int32_t row_exponent(float v) {
  const std::uint32_t u = num::bit_cast<std::uint32_t>(v) & 0x7FFFFFFFu;
  const auto e = static_cast<std::int32_t>(u >> 23) - 127;
  return twice(u == 0 ? kZeroExponent : e < MinExponent ? MinExponent : e);
}

// In 16-bit lanes: all that is looked at lies in a float's upper half, for f16 and bf16 alike. Returns
// whether all values are ordinary.
template <int MinExponent>
NIBBLE_INLINE bool panel_exponents(const float* values, std::int64_t k, std::int16_t* exponents) {
  for (std::int64_t i = 0; i < k * kPanelRows; ++i) {
    const std::uint32_t u = num::bit_cast<std::uint32_t>(values[i]) & 0x7FFFFFFFu;
    exponents[i] = static_cast<std::int16_t>(u >> 16);
  }
  std::int16_t most = 0;
  for (std::int64_t i = 0; i < k * kPanelRows; ++i) {
    const std::int16_t h = exponents[i];
    most = h > most ? h : most;
    std::int16_t e = static_cast<std::int16_t>((h >> 7) - 127);
    e = e < MinExponent ? std::int16_t{MinExponent} : e;
    exponents[i] = h == 0 ? std::int16_t{kZeroExponent} : e;
  }
  return most < kNotOrdinary<MinExponent>;
}

// One group of one row. False, and c as it was, where something is not ordinary.
template <int G, int F, int Bits>
NIBBLE_INLINE bool fast_group(const float* a, const std::int32_t* ea, const float* b,
                              const std::int16_t* eb, F32x16& c) {
  float v[kLanes], scale[kLanes];
  std::int16_t top[kLanes];
  std::int32_t m[kLanes], sum[kLanes];
  store(v, c);
  for (int j = 0; j < kLanes; ++j) top[j] = -32000;
  for (int k = 0; k < G; ++k) {
    const auto x = static_cast<std::int16_t>(ea[k]);
    for (int j = 0; j < kLanes; ++j) {
      const auto e = static_cast<std::int16_t>(x + eb[k * kPanelRows + j]);
      top[j] = e > top[j] ? e : top[j];
    }
  }
  std::int32_t bad = 0;
  for (int j = 0; j < kLanes; ++j) {
    const std::uint32_t u = num::bit_cast<std::uint32_t>(v[j]) & 0x7FFFFFFFu;
    const auto field = static_cast<std::int32_t>(u >> 23);
    const std::int32_t e = u == 0 ? kZeroExponent : (field < 1 ? 1 : field) - 127;
    const std::int32_t most = e > top[j] ? e : top[j];
    bad |= most > kMostExponent ? 1 : 0;
    bad |= most < F - 126 && most > kNoTerm ? 1 : 0;
    m[j] = most < F - 126 ? F - 126 : most;
    scale[j] = num::bit_cast<float>(static_cast<std::uint32_t>(F + 127 - m[j]) << 23);
    sum[j] = 0;
  }
  if (bad != 0) return false;
  for (int k = 0; k < G; ++k) {
    for (int j = 0; j < kLanes; ++j) {
      sum[j] += static_cast<std::int32_t>(a[k] * b[k * kPanelRows + j] * scale[j]);
    }
  }
  if constexpr (!kSumFits<G, F>) {
    constexpr auto kMost = static_cast<std::int32_t>(kMostSum<G, F>);
    for (int j = 0; j < kLanes; ++j) bad |= sum[j] > kMost || sum[j] < -kMost ? 1 : 0;
    if (bad != 0) return false;
  }
  for (int j = 0; j < kLanes; ++j) {
    const std::int32_t s = sum[j] + static_cast<std::int32_t>(v[j] * scale[j]);
    const std::int32_t size = s < 0 ? -s : s;
    const float near = static_cast<float>(size);
    const std::uint32_t grew = static_cast<std::int32_t>(near) > size ? 1 : 0;
    const std::uint32_t sign = static_cast<std::uint32_t>(s) & 0x80000000u;
    const float r = num::bit_cast<float>(((num::bit_cast<std::uint32_t>(near) - grew) & kKeptBits<Bits>) | sign);
    v[j] = r * num::bit_cast<float>(static_cast<std::uint32_t>(m[j] + 127 - F) << 23);
  }
  c = load(v);
  return true;
}

// False, and c as it was, where something is not ordinary.
template <int G, int F, int MinExponent, int Bits, int Rows>
NIBBLE_INLINE bool ordinary_chain(const float* a, const std::int32_t* ea, std::int64_t stride,
                                  const float* b, const std::int16_t* eb, std::int64_t k, float* c) {
  F32x16 sum[Rows];
  for (int r = 0; r < Rows; ++r) sum[r] = load(c + r * kPanelRows);
  for (std::int64_t k0 = 0; k0 < k; k0 += G) {
    for (int r = 0; r < Rows; ++r) {
      const std::int64_t at = r * stride + k0;
      if (!fast_group<G, F, Bits>(a + at, ea + at, b + k0 * kPanelRows, eb + k0 * kPanelRows, sum[r])) {
        return false;
      }
    }
  }
  for (int r = 0; r < Rows; ++r) store(c + r * kPanelRows, sum[r]);
  return true;
}

}  // namespace nibble::cpu::NIBBLE_ISA
