// Scalar functions against double, codecs over all their values, the tree, Philox.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/numerics/codecs.h"
#include "core/numerics/philox.h"
#include "core/numerics/reduce.h"
#include "tests/support/golden.h"

namespace nibble {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Error in units of the last place of the exact result's binade.
double ulps(float got, double exact) {
  int e;
  std::frexp(exact, &e);
  return std::abs(static_cast<double>(got) - exact) / std::ldexp(1.0, std::max(e - 24, -149));
}

template <class F, class G>
double worst(double low, double high, int steps, F f, G exact) {
  double most = 0;
  for (int i = 0; i <= steps; ++i) {
    const auto x = static_cast<float>(low + (high - low) * i / steps);
    most = std::max(most, ulps(f(x), exact(static_cast<double>(x))));
  }
  return most;
}

constexpr int kSteps = 4'000'000;

TEST(Scalar, Exp2) {
  const double seen = worst(-120, 10, kSteps, [](float v) { return num::exp2(v); }, [](double x) { return std::exp2(x); });
  RecordProperty("ulp", std::to_string(seen));
  EXPECT_LE(seen, 0.95);
  for (int n = -126; n <= 127; ++n)
    EXPECT_EQ(num::exp2(static_cast<float>(n)), std::ldexp(1.0f, n)) << n;
  EXPECT_EQ(num::exp2(-126.5f), 0.0f);
  EXPECT_EQ(num::exp2(127.5f), kInf);
  EXPECT_EQ(num::exp2(-kInf), 0.0f);
  EXPECT_EQ(num::exp2(kInf), kInf);
  EXPECT_TRUE(std::isnan(num::exp2(kNan)));
}

TEST(Scalar, Exp) {
  const double seen = worst(-87.3, 88.3, kSteps, [](float v) { return num::exp(v); }, [](double x) { return std::exp(x); });
  RecordProperty("ulp", std::to_string(seen));
  EXPECT_LE(seen, 1.15);
  EXPECT_EQ(num::exp(0.0f), 1.0f);
  EXPECT_EQ(num::exp(-0.0f), 1.0f);
  EXPECT_EQ(num::exp(-88.0f), 0.0f);
  EXPECT_EQ(num::exp(-3e38f), 0.0f);
  EXPECT_EQ(num::exp(89.0f), kInf);
  EXPECT_EQ(num::exp(3e38f), kInf);
  EXPECT_EQ(num::exp(-kInf), 0.0f);
  EXPECT_EQ(num::exp(kInf), kInf);
  EXPECT_TRUE(std::isnan(num::exp(kNan)));
}

TEST(Scalar, Log1pUnit) {
  const double seen = worst(0, 1, kSteps, [](float v) { return num::log1p_unit(v); }, [](double x) { return std::log1p(x); });
  RecordProperty("ulp", std::to_string(seen));
  EXPECT_LE(seen, 1.95);
  EXPECT_EQ(num::log1p_unit(0.0f), 0.0f);
}

TEST(Scalar, SigmoidSiluSoftplus) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const auto silu = [&](double x) { return x / (1 + std::exp(-x)); };
  const auto softplus = [](double x) { return x > 20 ? x : std::log1p(std::exp(x)); };
  const double a = worst(-80, 80, kSteps, [](float v) { return num::sigmoid(v); }, sigmoid);
  const double b = worst(-80, 80, kSteps, [](float v) { return num::silu(v); }, silu);
  const double c = worst(-80, 40, kSteps, [](float v) { return num::softplus(v); }, softplus);
  RecordProperty("sigmoid_ulp", std::to_string(a));
  RecordProperty("silu_ulp", std::to_string(b));
  RecordProperty("softplus_ulp", std::to_string(c));
  EXPECT_LE(a, 2.4);
  EXPECT_LE(b, 2.4);
  EXPECT_LE(c, 2.6);
  EXPECT_EQ(num::sigmoid(-kInf), 0.0f);
  EXPECT_EQ(num::sigmoid(kInf), 1.0f);
  EXPECT_EQ(num::silu(0.0f), 0.0f);
  EXPECT_EQ(num::silu(kInf), kInf);
  EXPECT_EQ(num::softplus(-kInf), 0.0f);
  EXPECT_EQ(num::softplus(kInf), kInf);
  EXPECT_EQ(num::softplus(20.5f), 20.5f);
  for (const auto f : {num::sigmoid, num::silu, num::softplus}) EXPECT_TRUE(std::isnan(f(kNan)));
}

TEST(Philox, PublishedVectors) {
  struct Case {
    num::Philox counter;
    std::uint32_t key0, key1;
    std::uint32_t expected[4];
  };
  constexpr std::uint32_t f = 0xFFFFFFFFu;
  const Case cases[] = {
      {{{0, 0, 0, 0}}, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{{f, f, f, f}}, f, f, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
       0xa4093822,
       0x299f31d0,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Case& c : cases) {
    const num::Philox r = num::philox4x32_10(c.counter, c.key0, c.key1);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(r.v[i], c.expected[i]) << i;
  }
  float low = 1, high = 0;
  for (std::uint64_t p = 0; p < 100'000; ++p) {
    const float u = num::uniform(7, p, 0);
    low = std::min(low, u);
    high = std::max(high, u);
  }
  EXPECT_GE(low, 0.0f);
  EXPECT_LT(low, 1e-4f);
  EXPECT_LT(high, 1.0f);
  EXPECT_GT(high, 1 - 1e-4f);
}

// The definition, straight from reduce.h's text, in another shape than its code.
float tree_by_text(const std::vector<float>& x, bool square) {
  const std::size_t lanes = x.size() <= 512 ? 32 : 256;
  std::vector<float> sum(lanes, 0.0f);
  for (std::size_t i = 0; i < x.size(); ++i) {
    float& s = sum[i % lanes];
    s = square ? std::fmaf(x[i], x[i], s) : s + x[i];
  }
  while (sum.size() > 1) {
    std::vector<float> half(sum.size() / 2);
    for (std::size_t j = 0; j < half.size(); ++j) half[j] = sum[j] + sum[j + half.size()];
    sum = half;
  }
  return sum[0];
}

TEST(Tree, IsAFunctionOfTheLength) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const std::size_t n :
       {0u, 1u, 2u, 31u, 32u, 33u, 64u, 100u, 511u, 512u, 513u, 600u, 1024u, 5120u, 5121u}) {
    std::vector<float> x(n);
    for (float& v : x) v = normal(random);
    const auto length = static_cast<std::int64_t>(n);
    EXPECT_EQ(num::tree_sum(x.data(), length), tree_by_text(x, false)) << n;
    EXPECT_EQ(num::tree_sum_squares(x.data(), length), tree_by_text(x, true)) << n;
    double exact = 0, magnitude = 0;
    for (const float v : x) exact += v, magnitude += std::abs(v);
    EXPECT_LE(std::abs(num::tree_sum(x.data(), length) - exact), magnitude * 30 * 0x1p-24) << n;
  }
}

// Nearest value, ties to the even code, by search over all codes in double.
template <class Decode>
int nearest(double v, int codes, Decode decode) {
  int best = 0;
  for (int c = 1; c < codes; ++c) {
    const double d = std::abs(decode(c) - v), b = std::abs(decode(best) - v);
    if (d < b || (d == b && c % 2 == 0)) best = c;
  }
  return best;
}

TEST(Codecs, E2m1) {
  const float magnitudes[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
  for (int c = 0; c < 16; ++c) {
    const float v = num::e2m1_to_float(static_cast<std::uint8_t>(c));
    EXPECT_EQ(std::abs(v), magnitudes[c & 7]);
    EXPECT_EQ(std::signbit(v), c >= 8);
    EXPECT_EQ(num::float_to_e2m1(v), c);
  }
  const auto decode = [&](int c) { return static_cast<double>(magnitudes[c]); };
  for (int i = 0; i <= 7 * 1024; ++i) {  // every tie is among them
    const float v = static_cast<float>(i) / 1024;
    for (const float w : {v, std::nextafter(v, 0.0f), std::nextafter(v, 9.0f)}) {
      const int want = nearest(w, 8, decode);
      EXPECT_EQ(num::float_to_e2m1(w), want) << w;
      EXPECT_EQ(num::float_to_e2m1(-w), want + (std::signbit(-w) ? 8 : 0)) << w;
    }
  }
  EXPECT_EQ(num::float_to_e2m1(kInf), 7);
  EXPECT_EQ(num::float_to_e2m1(-kInf), 15);
  for (const float nan : {kNan, -kNan}) EXPECT_EQ(num::float_to_e2m1(nan), 0);
}

TEST(Codecs, E4m3) {
  const auto value = [](int c) {
    const int e = c >> 3, m = c & 7;
    return e == 0 ? std::ldexp(m, -9) : std::ldexp(8 + m, e - 10);
  };
  for (int c = 0; c < 256; ++c) {
    const float v = num::e4m3_to_float(static_cast<std::uint8_t>(c));
    EXPECT_EQ(std::signbit(v), c >= 128);
    if ((c & 127) == 127) {
      EXPECT_TRUE(std::isnan(v));
      EXPECT_EQ(num::float_to_e4m3(v), 127);
    } else {
      EXPECT_EQ(std::abs(v), value(c & 127));
      EXPECT_EQ(num::float_to_e4m3(v), c);
    }
  }
  for (int c = 0; c < 126; ++c) {
    const auto mid = static_cast<float>((value(c) + value(c + 1)) / 2);
    for (const float v : {mid, std::nextafter(mid, 0.0f), std::nextafter(mid, 1e9f)}) {
      EXPECT_EQ(num::float_to_e4m3(v), nearest(v, 127, value)) << v;
      EXPECT_EQ(num::float_to_e4m3(-v), nearest(v, 127, value) | 128) << v;
    }
  }
  for (const float v : {448.0f, 463.9f, 464.0f, 480.0f, 1e30f, kInf})
    EXPECT_EQ(num::float_to_e4m3(v), 0x7E) << v;
  EXPECT_EQ(num::float_to_e4m3(1e-40f), 0);
  EXPECT_EQ(num::float_to_e4m3(-1e-40f), 0x80);
}

template <class Encode, class Decode>
void sixteen_bits(Encode encode, Decode decode, int exponent_bits, int mantissa_bits) {
  const int top = (1 << exponent_bits) - 1;
  for (int h = 0; h < 65536; ++h) {
    const float v = decode(static_cast<std::uint16_t>(h));
    const int e = h >> mantissa_bits & top, m = h & ((1 << mantissa_bits) - 1);
    const int bias = top / 2;
    ASSERT_EQ(std::signbit(v), h >= 32768) << h;
    if (e == top && m != 0) {
      ASSERT_TRUE(std::isnan(v)) << h;
      ASSERT_TRUE(std::isnan(decode(encode(v)))) << h;
      continue;
    }
    const double exact = e == top ? kInf
                         : e == 0 ? std::ldexp(m, 1 - bias - mantissa_bits)
                                  : std::ldexp((1 << mantissa_bits) + m, e - bias - mantissa_bits);
    ASSERT_EQ(std::abs(v), exact) << h;
    ASSERT_EQ(encode(v), h);
    // midpoints with the next code, and their neighbours
    if (h >= 32768 || e == top) continue;
    const double next = (h + 1) >> mantissa_bits == top ? std::ldexp(1.0, bias + 1)
                                                        : decode(static_cast<std::uint16_t>(h + 1));
    const auto mid = static_cast<float>((exact + next) / 2);
    ASSERT_EQ(encode(mid), h + h % 2) << h;
    ASSERT_EQ(encode(std::nextafter(mid, 0.0f)), h) << h;
    ASSERT_EQ(encode(std::nextafter(mid, kInf)), h + 1) << h;
    ASSERT_EQ(encode(-mid), (h + h % 2) | 0x8000) << h;
  }
}

TEST(Codecs, F16) {
  sixteen_bits(num::float_to_f16, num::f16_to_float, 5, 10);
}
TEST(Codecs, Bf16) {
  sixteen_bits(num::float_to_bf16, num::bf16_to_float, 8, 7);
}

TEST(Codecs, GoldenTables) {
  const test::Golden g(NIBBLE_TEST_DATA "/golden/nvfp4.safetensors");
  const auto bytes = g.u8("e4m3.bytes");
  const auto values = g.f32("e4m3.values");
  ASSERT_EQ(bytes.size(), 127u);
  for (std::size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(num::e4m3_to_float(bytes[i]), values[i]);
  const auto x4 = g.f32("e2m1.x"), v4 = g.f32("e2m1.value");
  const auto c4 = g.u8("e2m1.code");
  for (std::size_t i = 0; i < x4.size(); ++i) {
    EXPECT_EQ(num::float_to_e2m1(x4[i]), c4[i]) << x4[i];
    EXPECT_EQ(num::e2m1_to_float(c4[i]), v4[i]);
  }
  const auto x8 = g.f32("e4m3r.x"), v8 = g.f32("e4m3r.value");
  const auto b8 = g.u8("e4m3r.byte");
  for (std::size_t i = 0; i < x8.size(); ++i) {
    EXPECT_EQ(num::float_to_e4m3(x8[i]), b8[i]) << x8[i];
    EXPECT_EQ(num::e4m3_to_float(b8[i]), v8[i]);
  }
}

}  // namespace
}  // namespace nibble
