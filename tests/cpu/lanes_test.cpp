// Sixteen lanes at once against core/numerics one value at a time, by bytes.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "backends/cpu/float_env.h"
#include "core/numerics/reduce.h"
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

}  // namespace
}  // namespace nibble::cpu
