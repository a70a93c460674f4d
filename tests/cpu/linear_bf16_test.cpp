// Linear of profile bf16 beyond what linear_fused_test.cpp compares: the units' arithmetic on operands that no model
// holds, row blocks and depths beyond one of the tile kernel, and what kernels may be asked for.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "nibble/error.h"
#include "tests/cpu/linear_fused_reference.h"
#include "tests/support/complaint.h"

namespace nibble {
namespace {

using namespace test;

// Every value of x is a bf16 already, so that operands are what the test says.
struct Edges {
  static constexpr std::int64_t kN = 32, kK = 96, kT = 33;
  const char* name;
  int least_exponent, exponents;  // of bf16's 8 bits
  bool specials;
};
constexpr Edges kEdges[] = {{"near one", 120, 12, false},
                            {"eighty binades", 87, 80, false},
                            {"products below 2^-126", 55, 16, false},
                            {"subnormal, zero, infinite, NaN", 0, 256, true}};

std::uint16_t random_bf16(std::mt19937& random, const Edges& e) {
  const std::uint32_t r = random();
  const auto sign = static_cast<std::uint16_t>((r & 1u) << 15);
  if (e.specials) {
    constexpr std::uint16_t kSpecial[] = {0, 0x7F80, 0x7F7F, 0x0080, 0x0081, 0x007F, 0x0001, 0x7FC0};
    const std::uint32_t which = r >> 1 & 31u;
    if (which < 6 || (which < 8 && (r >> 8 & 15u) == 0)) return sign | kSpecial[which];
  }
  const std::uint32_t exponent = static_cast<std::uint32_t>(e.least_exponent) + (r >> 12) % static_cast<std::uint32_t>(e.exponents);
  return static_cast<std::uint16_t>(sign | (exponent << 7) | (r >> 24 & 127u));
}

TEST(LinearBf16, UnitsAddAsTheContractSays) {
  std::mt19937 random(3);
  Parallel one(1);
  for (const Edges& e : kEdges) {
    for (int round = 0; round < 20; ++round) {
      RandomWeight w(WeightFormat::bf16, ScaleLayout::none, Edges::kN, Edges::kK, 1);
      for (std::size_t i = 0; i < w.codes.size(); i += 2) {
        const std::uint16_t h = random_bf16(random, e);
        std::memcpy(&w.codes[i], &h, 2);
      }
      Input in(Profile::bf16, Kind::none, Edges::kK, 1);
      for (float& v : in.x) v = num::bf16_to_float(random_bf16(random, e));
      in.round_rows();
      const std::vector<float> want = expected(w.weight, Operands(Profile::bf16, w.weight), in);
      for (const Kernels& kernels : cpu::available_kernels(true)) {
        const Aligned arena(cpu::packed_bytes(w.weight, cpu::WeightOperand::bf16));
        const auto packed = cpu::pack(w.weight, arena.data, one, cpu::nibble_order(kernels.isa), cpu::WeightOperand::bf16);
        Guarded y(Edges::kT, Edges::kN);
        run(kernels, one, packed, in, 0, Edges::kT, y);
        for (std::int64_t t = 0; t < Edges::kT; ++t) {
          for (std::int64_t n = 0; n < Edges::kN; ++n) {
            const float wanted = want[static_cast<std::size_t>(t * Edges::kN + n)];
            ASSERT_TRUE(same_bits(y.at(t, n), wanted))
                << e.name << ", " << cpu::kernels_name(kernels) << ": " << y.at(t, n) << " != " << wanted;
          }
        }
      }
    }
  }
}

// What the contract's function says at the seam where a result becomes zero, from exact arithmetic.
TEST(LinearBf16, ResultsBelowTheLeastNormalAreZero) {
  const float least = 0x1p-126f;
  EXPECT_EQ(num::fma_flush(0x1p-100f, 0x1p-26f, 0.0f), least);
  EXPECT_EQ(num::bit_cast<std::uint32_t>(num::fma_flush(-0x1p-100f, 0x1p-27f, 0.0f)), 0x80000000u);
  // 2^-126 - 2^-150, - 2^-151 and - 2^-152: the first is below, the second ties to even, the third is nearer to 2^-126.
  EXPECT_EQ(num::fma_flush(-0x1p-100f, 0x1p-50f, least), 0.0f);
  EXPECT_EQ(num::fma_flush(-0x1p-100f, 0x1p-51f, least), least);
  EXPECT_EQ(num::fma_flush(-0x1p-100f, 0x1p-52f, least), least);
  EXPECT_EQ(num::fma_flush(-0x1p-100f, 0x1.8p-51f, least), 0.0f);
  EXPECT_EQ(num::fma_flush(-0x1p-100f, 0x1.02p-51f, least), 0.0f);
  EXPECT_EQ(num::fma_flush(0x1p-100f, 0x1.02p-51f, -least), -0.0f);
}

// Two row blocks, five depths with a tail, three panel groups with a tail; each row as it is alone, by fma.
TEST(LinearBf16, ManyRowsEqualOneRow) {
  constexpr std::int64_t kN = 16 * 9 + 3, kK = 2048 + 112, kT = 1101;
  for (const WeightFormat format : {WeightFormat::nvfp4, WeightFormat::fp8_e4m3}) {
    const auto layout = format == WeightFormat::nvfp4 ? ScaleLayout::tensor : ScaleLayout::block128;
    const RandomWeight w(format, layout, kN, kK, 2);
    std::mt19937 random(4);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<std::size_t>(kT * kK));
    for (float& v : x) v = normal(random);
    Parallel one(1), three(3);
    const auto compute = [&](const Kernels& kernels, Parallel& parallel, std::int64_t first, std::int64_t rows, Guarded& y) {
      const Aligned arena(cpu::packed_bytes(w.weight)), workspace(static_cast<std::uint64_t>(
          cpu::any_linear_workspace_bytes(Profile::bf16, kernels, parallel.threads(), rows, kK, {})));
      const auto packed = cpu::pack(w.weight, arena.data, parallel, cpu::nibble_order(kernels.isa), cpu::WeightOperand::bf16);
      cpu::LinearArgs a;
      a.weight = &packed;
      a.rows = rows;
      a.x = x.data() + first * kK;
      a.x_stride = kK;
      a.y = y.data();
      a.y_stride = y.stride();
      a.workspace = workspace.data;
      cpu::any_linear(Profile::bf16, kernels, parallel, a);
    };
    for (const Kernels& kernels : cpu::available_kernels(true)) {
      if (kernels.isa == Isa::portable && kernels.unit == cpu::Bf16Unit::fma) continue;  // minutes
      Guarded all(kT, kN), alone(1, kN);
      compute(kernels, three, 0, kT, all);
      EXPECT_EQ(all.damage(), "");
      for (const std::int64_t t : {0, 15, 16, 31, 32, 511, 512, 1023, 1024, 1088, 1100}) {
        compute(Isa::portable, one, t, 1, alone);
        for (std::int64_t n = 0; n < kN; ++n) {
          ASSERT_TRUE(same_bits(all.at(t, n), alone.at(0, n))) << cpu::kernels_name(kernels) << " " << t << " " << n;
        }
      }
    }
  }
}

TEST(LinearBf16, KernelsAreNamed) {
  for (const Kernels& kernels : cpu::available_kernels(true)) {
    const Kernels found = cpu::kernels_from_name(cpu::kernels_name(kernels), true);
    EXPECT_EQ(found.isa, kernels.isa);
    EXPECT_EQ(found.unit, kernels.unit);
  }
  for (const char* unit : {"amx", "avx512_bf16"}) {
    EXPECT_NE(complaint([&] { cpu::kernels_from_name(unit, false); }).find("which only profile bf16 has"), std::string::npos);
  }
  EXPECT_NE(complaint([] { cpu::kernels_from_name("mmx", true); }).find("portable on this processor, found \"mmx\""),
            std::string::npos);
  EXPECT_NE(complaint([] { cpu::profile_from_names("bf16", "sm90"); }).find("expected none beside a mirror"),
            std::string::npos);
  EXPECT_NE(complaint([] { cpu::profile_from_names("f16", ""); }).find("(f32, bf16), found \"f16\""), std::string::npos);
}

}  // namespace
}  // namespace nibble
