// Sixteen lanes at once against core/numerics one value at a time, by bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "core/base/float_env.h"
#include "backends/cpu/kernels/quantize.h"
#include "backends/cpu/kernels/rounding.h"
#include "core/numerics/reduce.h"
#include "core/numerics/row_scale.h"
#include "tests/cpu/lanes_probe.h"
#include "tests/support/buffers.h"

namespace nibble::cpu {
namespace {

const LaneFunctions& functions_of(Isa isa) {
  NIBBLE_PICK_ISA(isa, lane_functions());
}

float of_bits(std::uint32_t bits) {
  return num::bit_cast<float>(bits);
}

// Zeros, subnormals, every power of two and its neighbours, infinities and NaN of both signs; the places
// where the functions change their formula; then bits at random, and values of ordinary size.
std::vector<float> values() {
  std::vector<float> x;
  for (std::uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      for (int off = -3; off <= 3; ++off) {
        x.push_back(of_bits(sign | ((exponent << 23) + static_cast<std::uint32_t>(off))));
      }
      x.push_back(of_bits(sign | exponent << 23 | 0x400000u));
    }
  }
  for (const float edge : {87.3f, 88.37f, 20.0f, 126.0f, 127.5f, 0.34657359f, 1.0f}) {
    for (int off = -300; off <= 300; ++off) {
      const float v = of_bits(num::bit_cast<std::uint32_t>(edge) + static_cast<std::uint32_t>(off));
      x.push_back(v);
      x.push_back(-v);
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 2'000'000; ++i) x.push_back(of_bits(static_cast<std::uint32_t>(random())));
  std::uniform_real_distribution<float> ordinary(-100, 100);
  for (int i = 0; i < 2'000'000; ++i) x.push_back(ordinary(random));
  while (x.size() % 16 != 0) x.push_back(0);
  return x;
}

TEST(Lanes, FunctionsHaveTheBitsOfTheScalarOnes) {
  const FloatEnv env;
  const std::vector<float> x = values();
  const struct {
    const char* name;
    LaneFunctions::Each LaneFunctions::*lanes;
    float (*scalar)(float);
  } all[] = {{"exp", &LaneFunctions::exp, [](float v) { return num::exp(v); }},
             {"silu", &LaneFunctions::silu, [](float v) { return num::silu(v); }},
             {"sigmoid", &LaneFunctions::sigmoid, [](float v) { return num::sigmoid(v); }},
             {"softplus", &LaneFunctions::softplus, [](float v) { return num::softplus(v); }}};
  std::vector<float> y(x.size());
  for (const auto& f : all) {
    std::vector<float> want;
    for (const float v : x) want.push_back(f.scalar(v));
    for (const Isa isa : available_isas()) {
      (functions_of(isa).*f.lanes)(x.data(), static_cast<std::int64_t>(x.size()), y.data());
      for (std::size_t i = 0; i < x.size(); ++i) {
        ASSERT_TRUE(test::same_bits(y[i], want[i]))
            << f.name << "(" << x[i] << ") on " << isa_name(isa) << ": " << y[i] << " != " << want[i];
      }
    }
  }
}

TEST(Lanes, SumsAreTheTreeAtEveryLength) {
  const FloatEnv env;
  std::mt19937 random(8);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> x(1400);
  for (float& v : x) v = normal(random);
  x[5] = -0.0f;
  x[700] = 1e-42f;
  for (std::int64_t n = 1; n <= 1400; ++n) {
    const float sum = num::tree_sum(x.data(), n), squares = num::tree_sum_squares(x.data(), n);
    for (const Isa isa : available_isas()) {
      ASSERT_TRUE(test::same_bits(functions_of(isa).sum(x.data(), n), sum)) << isa_name(isa) << " " << n;
      ASSERT_TRUE(test::same_bits(functions_of(isa).squares(x.data(), n), squares)) << isa_name(isa) << " " << n;
    }
  }
}

TEST(Lanes, SumsOfMinusZerosAndNothingElse) {
  const FloatEnv env;
  const std::vector<float> x(40, -0.0f);
  for (const std::int64_t n : {1, 16, 33, 40}) {
    for (const Isa isa : available_isas()) {
      EXPECT_TRUE(test::same_bits(functions_of(isa).sum(x.data(), n), num::tree_sum(x.data(), n)));
    }
  }
}

const RoundingKernels& rounding_of(Isa isa) {
  NIBBLE_PICK_ISA(isa, rounding_kernels());
}
const QuantizeKernels& quantize_of(Isa isa) {
  NIBBLE_PICK_ISA(isa, quantize_kernels());
}

TEST(Lanes, RoundingToBf16AndToRowsOfF16) {
  const FloatEnv env;
  const std::vector<float> x = values();
  for (const Isa isa : available_isas()) {
    std::vector<float> y = x;
    rounding_of(isa).bf16(y.data(), static_cast<std::int64_t>(y.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_TRUE(test::same_bits(y[i], num::bf16_to_float(num::float_to_bf16(x[i])))) << x[i] << " " << isa_name(isa);
    }
    // Rows of every length, whose largest value is now small, now such that f16 overflows.
    y = x;
    std::size_t at = 0;
    for (std::size_t n = 1; at + n <= x.size(); at += n, n = n % 70 + 1) {
      std::uint32_t most = 0;
      for (std::size_t i = at; i < at + n; ++i) most = std::max(most, num::finite_magnitude(x[i]));
      const int e = num::activation_exponent(most);
      ASSERT_EQ(rounding_of(isa).f16(&y[at], static_cast<std::int64_t>(n)), e);
      for (std::size_t i = at; i < at + n; ++i) {
        const float want = num::row_f16_to_float(num::activation_to_f16(x[i], e), e);
        ASSERT_TRUE(test::same_bits(y[i], want)) << x[i] << " in a row of 2^" << e << " on " << isa_name(isa);
      }
    }
  }
}

TEST(Lanes, ColumnsOfF16) {
  const FloatEnv env;
  constexpr std::size_t kWidth = 16;
  const std::vector<float> x = values();
  for (const Isa isa : available_isas()) {
    // Panels of few rows have small columns beside large ones, and some of zeros, infinities and NaN alone.
    std::size_t rows = 1;
    for (std::size_t at = 0; at + rows * kWidth <= x.size(); at += rows * kWidth, rows = rows % 9 + 1) {
      std::vector<float> y(x.begin() + static_cast<std::ptrdiff_t>(at),
                           x.begin() + static_cast<std::ptrdiff_t>(at + rows * kWidth));
      float down[kWidth], up[kWidth];
      rounding_of(isa).column_powers(y.data(), static_cast<std::int64_t>(rows), down, up);
      rounding_of(isa).f16_columns(y.data(), static_cast<std::int64_t>(rows), down);
      for (std::size_t v = 0; v < kWidth; ++v) {
        std::uint32_t most = 0;
        for (std::size_t r = 0; r < rows; ++r) most = std::max(most, num::finite_magnitude(x[at + r * kWidth + v]));
        const int e = num::weight_exponent(most);
        ASSERT_EQ(down[v], num::power_of_two(-e));
        ASSERT_EQ(up[v], num::power_of_two(e));
        for (std::size_t r = 0; r < rows; ++r) {
          const float from = x[at + r * kWidth + v], want = num::f16_to_float(num::weight_to_f16(from, e));
          ASSERT_TRUE(test::same_bits(y[r * kWidth + v], want)) << from << " by 2^-" << e << " on " << isa_name(isa);
        }
      }
    }
  }
}

TEST(Lanes, CodesOfE4m3) {
  const FloatEnv env;
  const std::vector<float> x = values();
  std::vector<std::uint8_t> codes(x.size());
  for (const Isa isa : available_isas()) {
    for (const float scale : {1.0f, 0.37f}) {
      quantize_of(isa).fp8_tensor(x.data(), static_cast<std::int64_t>(x.size()), scale, codes.data());
      for (std::size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(codes[i], num::float_to_e4m3(num::div(x[i], scale))) << x[i] << " on " << isa_name(isa);
      }
    }
  }
}

// Groups whose largest magnitude is 6, so that their unit is 1, full of what e2m1 rounds.
TEST(Lanes, CodesOfE2m1) {
  const FloatEnv env;
  std::vector<float> x;
  for (const float v : values()) {
    if (x.size() % 16 == 0) x.push_back(6.0f);
    if (!(num::abs(v) > 6.0f)) x.push_back(v);
  }
  for (const float edge : {0.25f, 0.5f, 0.75f, 1.0f, 1.25f, 1.5f, 1.75f, 2.0f, 2.5f, 3.0f, 3.5f, 4.0f, 5.0f, 6.0f}) {
    for (int off = -20; off <= 20; ++off) {
      const float v = of_bits(num::bit_cast<std::uint32_t>(edge) + static_cast<std::uint32_t>(off));
      if (x.size() % 16 == 0) x.push_back(6.0f);
      if (v <= 6.0f) x.push_back(off % 2 == 0 ? v : -v);
    }
  }
  while (x.size() % 16 != 0) x.push_back(-0.0f);
  std::vector<std::uint8_t> codes(x.size() / 2), scales(x.size() / 16);
  for (const Isa isa : available_isas()) {
    quantize_of(isa).nvfp4(x.data(), static_cast<std::int64_t>(x.size()), 1.0f, codes.data(), scales.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(scales[i / 16], num::float_to_e4m3(1.0f));
      ASSERT_EQ(codes[i / 2] >> (4 * (i % 2)) & 15, num::float_to_e2m1(x[i])) << x[i] << " on " << isa_name(isa);
    }
  }
}

}  // namespace
}  // namespace nibble::cpu
