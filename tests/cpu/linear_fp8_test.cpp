// Linear of mode a8 on the mirror of sm90: code by code on the FP8 unit, against a triple loop over the scalar model.
#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>

#include "core/numerics/matrix_order.h"
#include "nibble/error.h"
#include "tests/cpu/linear_fused_reference.h"

namespace nibble {
namespace {

using namespace test;

const oneapi::tbb::global_control kThreads(oneapi::tbb::global_control::max_allowed_parallelism, 8);

// Tails of panels, of groups of 32 and of segments of 128; one group, one segment, many.
struct Shape {
  std::int64_t n, k;
};
constexpr Shape kShapes[] = {{1, 16}, {33, 272}, {7, 1}, {17, 131}, {131, 400}, {5, 2208}, {16, 128}, {19, 3333}};

class LinearFp8 : public testing::TestWithParam<ScaleLayout> {};

// Rows first to last of any batch, on every instruction set and number of threads; row 3 of the input holds NaN.
TEST_P(LinearFp8, EqualsATripleLoop) {
  Parallel one(1), two(2), seven(7);
  for (const Shape& s : kShapes) {
    const RandomWeight w(WeightFormat::fp8_e4m3, GetParam(), s.n, s.k, 11);
    Input in(Profile::sm90, Kind::fp8_token, s.k, 5);
    in.fp8_unit = true;
    const std::vector<float> want = expected(w.weight, Operands(Profile::sm90, w.weight), in);
    for (const Isa isa : cpu::available_isas()) {
      const test::Aligned arena(cpu::packed_bytes(w.weight));
      const auto packed = cpu::pack(w.weight, arena.data, one, cpu::nibble_order(isa));
      expect_every_cut(isa, {&one, &two, &seven}, packed, in, want,
                       " N " + std::to_string(s.n) + " K " + std::to_string(s.k));
      if (HasFatalFailure()) return;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, LinearFp8,
                         testing::Values(ScaleLayout::tensor, ScaleLayout::row, ScaleLayout::block128),
                         [](const auto& tested) { return std::string(scale_layout_name(tested.param)); });

// Every byte as a code, NaN among them, in inputs and weights: a NaN stays in its row and column.
TEST(LinearFp8Edges, EveryByteEqualsATripleLoop) {
  constexpr std::int64_t kN = 37, kK = 288;
  RandomWeight w(WeightFormat::fp8_e4m3, ScaleLayout::row, kN, kK, 3);
  Input in(Profile::sm90, Kind::fp8_token, kK, 5);
  in.fp8_unit = true;
  std::mt19937 random(17);
  for (std::int64_t i = 0; i < kN * kK; ++i) {
    const bool nan = i / kK % 8 == 5 && random() % 200 == 0;
    w.codes[static_cast<std::size_t>(i)] = nan ? std::byte{0xFF} : std::byte{RandomWeight::code8(random)};
  }
  for (std::size_t i = 0; i < in.codes.size(); ++i) {
    const bool nan = i / kK % 6 == 4 && random() % 200 == 0;
    in.codes[i] = nan ? 0x7F : RandomWeight::code8(random);
    in.operand[i] = num::e4m3_to_float(in.codes[i]);
  }
  const std::vector<float> want = expected(w.weight, Operands(Profile::sm90, w.weight), in);
  int numbers = 0, nans = 0;
  Parallel one(1);
  for (const Isa isa : cpu::available_isas()) {
    const test::Aligned arena(cpu::packed_bytes(w.weight));
    const auto packed = cpu::pack(w.weight, arena.data, one, cpu::nibble_order(isa));
    Guarded y(kMost, kN);
    run(isa, one, packed, in, 0, kMost, y);
    for (std::int64_t t = 0; t < kMost; ++t) {
      for (std::int64_t n = 0; n < kN; ++n) {
        const float e = want[static_cast<std::size_t>(t * kN + n)];
        ++(e == e ? numbers : nans);
        ASSERT_TRUE(test::same_bits(y.at(t, n), e)) << t << " " << n << " " << y.at(t, n) << " " << e;
      }
    }
  }
  EXPECT_GT(numbers, 2 * nans);
  EXPECT_GT(nans, 100);
}

// The unit's order is no other unit's: with bf16 sums the same codes give other bits.
TEST(LinearFp8Order, DiffersFromBf16Sums) {
  const RandomWeight w(WeightFormat::fp8_e4m3, ScaleLayout::tensor, 16, 512, 11);
  Input in(Profile::sm90, Kind::fp8_token, 512, 5);
  Parallel one(1);
  const test::Aligned arena(cpu::packed_bytes(w.weight));
  const auto packed = cpu::pack(w.weight, arena.data, one, cpu::nibble_order(Isa::portable));
  Guarded a(8, 16), b(8, 16);
  run(Isa::portable, one, packed, in, 0, 8, a);
  in.fp8_unit = true;
  run(Isa::portable, one, packed, in, 0, 8, b);
  int differ = 0;
  for (std::int64_t t = 5; t < 8; ++t) {
    for (std::int64_t n = 0; n < 16; ++n) differ += !test::same_bits(a.at(t, n), b.at(t, n));
  }
  EXPECT_GT(differ, 40);
}

TEST(LinearFp8Order, WantsCodesOnBothSides) {
  const RandomWeight w(WeightFormat::nvfp4, ScaleLayout::tensor, 16, 64, 11);
  Input in(Profile::sm90, Kind::fp8_token, 64, 5);
  in.fp8_unit = true;
  Parallel one(1);
  const test::Aligned arena(cpu::packed_bytes(w.weight));
  const auto packed = cpu::pack(w.weight, arena.data, one, cpu::nibble_order(Isa::portable));
  Guarded y(1, 16);
  EXPECT_THROW(run(Isa::portable, one, packed, in, 0, 1, y), Error);
}

}  // namespace
}  // namespace nibble
