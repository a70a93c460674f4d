// core/numerics/quotient.h against division, exp and the codecs: all bf16 values, and all pairs of mantissas whose
// quotient could be rounded wrongly.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "core/numerics/quotient.h"

namespace nibble {
namespace {

std::uint32_t bits(float v) { return num::bit_cast<std::uint32_t>(v); }
bool same(float a, float b) { return a != a ? b != b : bits(a) == bits(b); }
float next_to(float y, int steps) { return num::bit_cast<float>(bits(y) + static_cast<std::uint32_t>(steps)); }

constexpr std::uint32_t kFirst = 1u << 23, kBehind = 1u << 24;
constexpr std::uint32_t kOther = 0xC100C1;  // the one whose refined() may lie beside RN(1 / b)
float mantissa(std::uint32_t m) { return std::ldexp(static_cast<float>(m), -23); }

// Whether y is at most one ulp (of the larger of the two binades) from 1 / b.
bool near_reciprocal(float y, float b) {
  const double exact = 1.0 / static_cast<double>(b);
  return std::fabs(static_cast<double>(y) - exact) <= (exact >= 1.0 ? 0x1p-23 : 0x1p-24);
}

// Every y that refined() can end at: RN(1 / b) from wherever it starts.
TEST(Quotient, OneStepRoundsEveryReciprocal) {
  for (std::uint32_t m = kFirst; m < kBehind; ++m) {
    const float b = mantissa(m), y = 1.0f / b;
    for (int d = -2; d <= 2; ++d) {
      const float from = next_to(y, d);
      if (!near_reciprocal(from, b) || m == kOther) continue;
      ASSERT_EQ(num::refined(b, from), y) << b << " from " << from;
    }
  }
}

// m * inverse == 1 modulo 2^32.
std::uint32_t inverse_of_odd(std::uint32_t m) {
  std::uint32_t x = m;
  for (int i = 0; i < 4; ++i) x *= 2 - m * x;
  return x;
}

// a / b = midpoint + rest / (2 b) in units of the quotient's last place, a and b integers of 24 bits: a * 2^s =
// b * odd + rest, s = 24 where a >= b and 25 where not.
TEST(Quotient, IsExactWhereAMidpointIsNear) {
  std::int64_t checked = 0;
  for (std::uint32_t b = kFirst; b < kBehind; ++b) {
    const int zeros = std::countr_zero(b);
    if (zeros > 3) continue;  // rest is a multiple of 2^zeros
    const std::uint32_t inverse = inverse_of_odd(b >> zeros);
    const float of_b = mantissa(b), y = 1.0f / of_b;
    for (int rest = -12; rest <= 12; ++rest) {
      if (rest == 0 || rest % (1 << zeros) != 0) continue;
      for (int s = 24; s <= 25; ++s) {
        const std::uint32_t period = 1u << (s - zeros),
                            least = static_cast<std::uint32_t>(-(rest / (1 << zeros))) * inverse & (period - 1);
        if (least % 2 == 0) continue;
        for (std::uint64_t odd = least; odd < 2 * kBehind; odd += period) {
          const std::int64_t product = static_cast<std::int64_t>(b * odd) + rest;
          if (odd < kBehind || product >> s < kFirst || product >> s >= kBehind) continue;
          const auto a = static_cast<std::uint32_t>(product >> s);
          if ((s == 24) != (a >= b)) continue;
          const float of_a = mantissa(a);
          ASSERT_EQ(num::quotient(of_a, of_b, y), of_a / of_b) << a << " / " << b;
          if (b == kOther) {
            for (int d = -2; d <= 2; ++d) {
              const float from = next_to(y, d);
              if (!near_reciprocal(from, of_b)) continue;
              ASSERT_EQ(num::quotient(of_a, of_b, num::refined(of_b, from)), of_a / of_b) << a << " from " << from;
            }
          }
          ++checked;
        }
      }
    }
  }
  EXPECT_GT(checked, 30'000'000);
}

TEST(Quotient, IsDivisionOverItsRange) {
  std::mt19937 random(5);
  const auto value = [&](int least, int most) {
    const int e = least + static_cast<int>(random() % static_cast<unsigned>(most - least + 1));
    const float v = std::ldexp(mantissa(kFirst + random() % kFirst), e);
    return random() % 2 == 0 ? v : -v;
  };
  for (int i = 0; i < 4'000'000; ++i) {
    const float b = std::fabs(value(-60, 59)), limit = num::quotient_limit(b);
    ASSERT_GT(limit, 0.0f) << b;
    const float a = value(-100, 118);
    if (std::fabs(a) >= limit || std::fabs(a / b) < 0x1p-126f) continue;
    ASSERT_TRUE(same(num::quotient(a, b, 1.0f / b), a / b)) << a << " / " << b;
    ASSERT_TRUE(same(num::quotient(a, 6.0f, 1.0f / 6.0f), a / 6.0f)) << a;
  }
  for (const float b : {0x1p-60f, 0.01f, 1.0f, 6.0f, 0x1.fffffep+3f, 0x1p60f}) {
    for (const float zero : {0.0f, -0.0f}) {
      EXPECT_TRUE(same(num::quotient(zero, b, 1.0f / b), zero)) << b;
    }
    // what is too small for exactness is too small for a code, and keeps its sign
    for (std::uint32_t u = 1; u < bits(0x1p-100f); u = u * 3 + 1) {
      const float q = num::quotient(num::bit_cast<float>(u), b, 1.0f / b);
      EXPECT_TRUE(q >= 0.0f && q <= 0x1p-39f && !std::signbit(q)) << u << " " << b;
    }
  }
  for (const float b : {0.0f, 1e-40f, 0x1p-61f, 0x1.8p60f, INFINITY, std::nanf(""), -1.0f}) {
    EXPECT_EQ(num::quotient_limit(b), 0.0f) << b;
  }
}

TEST(Quotient, SiluOfEveryBf16) {
  for (std::uint32_t h = 0; h < 65536; ++h) {
    const float x = num::bf16_to_float(static_cast<std::uint16_t>(h));
    if (x < num::kSiluLeast) continue;
    const float d = num::silu_denominator(x);
    ASSERT_TRUE(x != x || d == 1.0f + num::exp(-x)) << x;
    const bool infinite = x == INFINITY;  // becomes NaN, by which it is noticed
    for (int step = -2; step <= 2; ++step) {
      const float y = next_to(1.0f / d, step);
      if (!near_reciprocal(std::ldexp(y, std::ilogb(d)), std::ldexp(d, -std::ilogb(d)))) continue;
      const float got = num::silu_by(x, d, y);
      ASSERT_TRUE(infinite ? got != got : same(got, num::silu(x))) << x << " from " << y << ": " << got;
    }
  }
}

void expect_e2m1(float v) {
  const std::uint32_t code = num::e2m1_low16(8.0f * v) & 0xFFFFu;
  ASSERT_EQ(code | (bits(v) >> 28 & 8u), num::float_to_e2m1(v)) << v;
}
TEST(Quotient, E2m1OfEveryBf16AndAroundMidpoints) {
  for (std::uint32_t h = 0; h < 65536; ++h) {
    const float v = num::bf16_to_float(static_cast<std::uint16_t>(h));
    if (v == v) expect_e2m1(v);
  }
  for (const float m : {0.25f, 0.5f, 0.75f, 1.0f, 1.25f, 1.5f, 1.75f, 2.0f, 2.5f, 3.0f, 3.5f, 4.0f, 5.0f, 6.0f, 7.0f}) {
    for (int d = -1000; d <= 1000; ++d) {
      expect_e2m1(next_to(m, d));
      expect_e2m1(-next_to(m, d));
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 2'000'000; ++i) {
    const float v = num::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (v == v) expect_e2m1(v);
    expect_e2m1(static_cast<float>(random()) * 0x1.cp-30f);
  }
}

}  // namespace
}  // namespace nibble
