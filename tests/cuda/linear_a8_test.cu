// Linear on sm_90's FP8 unit (mode a8): every case with FP8 weights and inputs quantised by row, each tile and the kernel
// that does without the unit, against the mirror.
#include "nibble/error.h"
#include "tests/cases/linear_cases.h"
#include "tests/cuda/linear_run.h"

namespace nibble::test {
namespace {

constexpr auto kPath = cuda::ArchPath::sm90;
constexpr int kMoreTilesThanThereAre = 16;

std::vector<Combination> fp8_by_fp8() {
  std::vector<Combination> all;
  for (const ScaleLayout l : {ScaleLayout::tensor, ScaleLayout::row, ScaleLayout::block128}) {
    all.push_back({WeightFormat::fp8_e4m3, l, Kind::fp8_token});
  }
  return all;
}

void check_a8(const Combination& c, const Case& s, std::size_t index) {
  SCOPED_TRACE(case_text(c, s));
  const OwnedWeight w(c, s, kWeightSeed + index);
  const OnDevice packed(w.weight, staging_for(w.weight, index), kPath, true);
  ASSERT_EQ(packed.arena.damage(), "");
  ASSERT_EQ(packed.image.order, cuda::CodeOrder::k32);
  const ActivationFormat format = format_of(c.kind);
  const LinearInput x = random_input(c, s, kInputSeed + index, kPath);
  const auto run = [&](const LinearInput& rows, std::int64_t most, std::int64_t gap, Kernels kernels, int tile) {
    return run_linear(s.bf16_output, packed.image, format, rows, most, gap, kPath, kernels, tile);
  };
  const std::vector<float> y = run(x, s.t, s.gap, Kernels::plain, -1);
  const std::vector<std::int64_t> columns = columns_for(s);
  std::vector<float> expected;
  mirror_linear(w.weight, format, x, columns, expected, kPath, true);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::size_t row = i / columns.size();
    const std::int64_t n = columns[i % columns.size()];
    const float want = s.bf16_output ? num::bf16_to_float(num::float_to_bf16(expected[i])) : expected[i];
    const float found = y[row * static_cast<std::size_t>(s.n) + static_cast<std::size_t>(n)];
    ASSERT_TRUE(same_bits(want, found)) << "y[" << row << ", " << n << "]: expected " << want << ", found " << found
                                        << std::hexfloat << " (" << want << ", " << found << ")";
  }
  const std::int64_t aligned = kAligned - static_cast<std::int64_t>(index % 2);
  for (const std::int64_t most : {s.t, s.t + 1, s.t + 64, s.t + 200}) {
    for (const Kernels kernels : {Kernels::tuned, Kernels::two_blocks}) {
      expect_same(y, run(x, most, aligned, kernels, -1), "a class");
    }
  }
  for (int tile = 0; tile < kMoreTilesThanThereAre; ++tile) {
    const std::vector<float> of_tile = run(x, s.t, aligned, Kernels::two_blocks, tile);
    if (!of_tile.empty()) expect_same(y, of_tile, ("tile " + std::to_string(tile)).c_str());
  }
  for (const std::int64_t row : {std::int64_t{0}, s.t / 2, s.t - 1}) {
    const auto first = y.begin() + row * s.n;
    expect_same({first, first + s.n}, run(row_of(x, row), 1, aligned, Kernels::tuned, -1), "a row alone");
  }
}

class LinearA8 : public testing::TestWithParam<Combination> {};

TEST_P(LinearA8, EqualsTheMirror) {
  NIBBLE_NEEDS_DEVICE();
  const std::vector<Case> cases = cases_of(GetParam());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    check_a8(GetParam(), cases[i], i);
    if (HasFatalFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(All, LinearA8, testing::ValuesIn(fp8_by_fp8()),
                         [](const auto& c) { return combination_name(c.param); });

// For tools that slow a kernel down a hundred times.
TEST(LinearSmallA8, EveryTile) {
  NIBBLE_NEEDS_DEVICE();
  std::size_t index = 0;
  for (const Combination& c : fp8_by_fp8()) {
    for (const std::int64_t t : {1, 17, 70}) check_a8(c, {200, 336, t, t == 17, t == 1, t == 17 ? 3 : 8}, index++);
    if (HasFatalFailure()) return;
  }
}

// Many units, cut between blocks: every tile has the bits of rows alone.
TEST(LinearA8Large, EveryTileEqualsRowsAlone) {
  NIBBLE_NEEDS_DEVICE();
  for (const Combination& c : fp8_by_fp8()) {
    const Case s{5120, 1984, 700, false, true, 0};
    const OwnedWeight w(c, s, 77);
    const OnDevice packed(w.weight, staging_for(w.weight, 2), kPath, true);
    const ActivationFormat format = format_of(c.kind);
    const LinearInput x = random_input(c, s, 78, kPath);
    const auto run = [&](const LinearInput& rows, Kernels kernels, int tile) {
      return run_linear(true, packed.image, format, rows, rows.rows, kAligned, kPath, kernels, tile);
    };
    const std::vector<float> y = run(x, Kernels::tuned, -1);
    for (int tile = 0; tile < kMoreTilesThanThereAre; ++tile) {
      const std::vector<float> of_tile = run(x, Kernels::tuned, tile);
      if (!of_tile.empty()) expect_same(y, of_tile, ("tile " + std::to_string(tile)).c_str());
    }
    for (const std::int64_t row : {0, 127, 128, 511, 699}) {
      const auto first = y.begin() + row * s.n;
      expect_same({first, first + s.n}, run(row_of(x, row), Kernels::tuned, -1), "a row alone");
      expect_same({first, first + s.n}, run(row_of(x, row), Kernels::plain, -1), "without the unit");
    }
    if (HasFatalFailure()) return;
  }
}

TEST(LinearA8Names, TheKernelAndWhyNot) {
  NIBBLE_NEEDS_DEVICE();
  cuda::Launch to;
  to.max_rows = 300;
  to.multiprocessors = multiprocessors();
  to.sums = linear_sums();
  cuda::LinearArgs args;
  args.weight.plain = true;
  args.weight.format = WeightFormat::fp8_e4m3;
  args.weight.order = cuda::CodeOrder::k32;
  args.weight.rows = args.weight.padded_rows = 5120;
  args.weight.cols = args.weight.padded_cols = 6144;
  args.x.stride = args.x.cols = 6144;
  EXPECT_THROW(static_cast<void>(cuda::linear_kernel(to, args)), Error);  // bf16 x has no kernel on these codes
  args.format = {Kind::fp8_token, 0.0f};
  if (std::string(cuda::linear_kernel(to, args)) == "wgmma.m64k32 e4m3") {
    EXPECT_EQ(cuda::linear_tiles(to, args).at(0).refusal, "the class has more rows");
  }
  args.x.stride = 6145;
  EXPECT_STREQ(cuda::linear_kernel(to, args), "e4m3 plain, emulated");
  for (const auto& [name, why] : cuda::linear_choices(to, args)) {
    if (name.rfind("mma.m16n8k16", 0) == 0) {
      EXPECT_EQ(why, "the path multiplies fp8 by fp8 on the FP8 unit");
    }
  }
}

}  // namespace
}  // namespace nibble::test
