// linear_large_test.cu: the tuned kernels of Linear where their schedules cut, split and fold tiles, which small cases
// do not reach, against the plain kernel that linear_test.cu compares with the contract: all outputs, byte by byte.
#include <gtest/gtest.h>

#include "tests/cuda/linear_run.h"

namespace nibble::test {
namespace {

struct Large {
  WeightFormat format;
  ScaleLayout layout;
  std::int64_t n, k, t;
};
// On a card of 132 multiprocessors; on others they fall differently.
const Large kLarge[] = {
    {WeightFormat::nvfp4, ScaleLayout::tensor, 34816, 512, 300},   // many tiles, cut
    {WeightFormat::nvfp4, ScaleLayout::row, 17280, 1040, 256},     // 135 tiles: three of them more than blocks
    {WeightFormat::nvfp4, ScaleLayout::tensor, 34816, 320, 8},     // two blocks a multiprocessor, cut
    {WeightFormat::nvfp4, ScaleLayout::tensor, 34816, 320, 64},
    {WeightFormat::nvfp4, ScaleLayout::tensor, 5120, 6144, 1},     // four segments, split
    {WeightFormat::nvfp4, ScaleLayout::tensor, 5120, 6144, 33},
    {WeightFormat::nvfp4, ScaleLayout::tensor, 5120, 6144, 128},   // split and cut
    {WeightFormat::nvfp4, ScaleLayout::tensor, 5120, 6144, 250},
    {WeightFormat::nvfp4, ScaleLayout::tensor, 5120, 6144, 1024},  // totals in memory, cut within a segment
    {WeightFormat::nvfp4, ScaleLayout::tensor, 4992, 4160, 2048},  // cut where a segment ends, for some blocks
    {WeightFormat::fp8_e4m3, ScaleLayout::row, 5120, 6144, 1024},
    {WeightFormat::fp8_e4m3, ScaleLayout::block128, 5120, 2048, 700},
    {WeightFormat::fp8_e4m3, ScaleLayout::block128, 17280, 1111, 16},
    {WeightFormat::bf16, ScaleLayout::none, 5120, 4224, 520},
    {WeightFormat::bf16, ScaleLayout::none, 17280, 500, 40},
};

TEST(LinearLarge, TunedEqualsPlain) {
  NIBBLE_NEEDS_DEVICE();
  std::uint64_t seed = 1;
  for (const Large& l : kLarge) {
    const Combination c{l.format, l.layout, Kind::none};
    const Case s{l.n, l.k, l.t, false, seed % 2 == 0, 0};
    SCOPED_TRACE(case_text(c, s));
    const OwnedWeight w(c, s, ++seed);
    const OnDevice packed(w.weight, staging_for(w.weight, 2));
    LinearInput x = random_input(c, s, ++seed);
    const std::int64_t stride = (l.k + 7) / 8 * 8;  // what the tuned kernels ask of x
    const std::int64_t gap = stride - l.k;
    constexpr cuda::ArchPath kPath = cuda::ArchPath::sm90;
    const auto run = [&](const LinearInput& rows, std::int64_t most, Kernels kernels) {
      return run_linear(s.bf16_output, packed.image, {}, rows, most, gap, kPath, kernels);
    };
    const std::vector<float> plain = run(x, l.t, Kernels::plain);
    // Classes of more rows than the step has, and what one launch leaves for the next.
    for (const std::int64_t most : {l.t, l.t + 1, 2 * l.t + 70, l.t}) {
      expect_same(plain, run(x, most, Kernels::tuned), "tuned");
      const LinearInput some = rows_of(x, 0, (l.t + 2) / 3);
      expect_same({plain.begin(), plain.begin() + some.rows * l.n}, run(some, most, Kernels::tuned), "some rows");
    }
    for (int tile = 0; tile < cuda::linear_tile_count(); ++tile) {
      const std::vector<float> of_tile =
          run_linear(s.bf16_output, packed.image, {}, x, l.t, gap, kPath, Kernels::tuned, tile);
      if (!of_tile.empty()) expect_same(plain, of_tile, ("tile " + std::to_string(tile)).c_str());
    }
    if (HasFatalFailure()) return;
  }
}

// Path sm70: tiles of 64 and 128 rows with a split and without (segments added in y), and few rows. The plain kernel
// serves rows of x that are not aligned.
const Large kLargeSm70[] = {
    {WeightFormat::nvfp4, ScaleLayout::tensor, 5120, 4160, 1},
    {WeightFormat::nvfp4, ScaleLayout::row, 5120, 4160, 32},
    {WeightFormat::nvfp4, ScaleLayout::tensor, 5120, 4160, 61},    // split
    {WeightFormat::nvfp4, ScaleLayout::tensor, 5120, 4160, 130},   // split
    {WeightFormat::nvfp4, ScaleLayout::tensor, 5120, 4160, 1000},  // segments in y
    {WeightFormat::nvfp4, ScaleLayout::row, 17281, 496, 260},      // one segment
    {WeightFormat::fp8_e4m3, ScaleLayout::block128, 2560, 1032, 300},
    {WeightFormat::fp8_e4m3, ScaleLayout::row, 2565, 3080, 70},
    {WeightFormat::bf16, ScaleLayout::none, 1920, 2064, 385},
};

TEST(LinearLarge, TunedEqualsPlainOnSm70) {
  NIBBLE_NEEDS_DEVICE();
  constexpr cuda::ArchPath kPath = cuda::ArchPath::sm70;
  std::uint64_t seed = 100;
  for (const Large& l : kLargeSm70) {
    const Combination c{l.format, l.layout, Kind::none};
    const Case s{l.n, l.k, l.t, false, false, 0};
    SCOPED_TRACE(case_text(c, s));
    const OwnedWeight w(c, s, ++seed);
    const OnDevice packed(w.weight, staging_for(w.weight, 2), kPath);
    const LinearInput x = random_input(c, s, ++seed, kPath);
    const std::vector<float> plain = run_linear<float>(packed.image, {}, x, l.t, 1, kPath);
    for (const std::int64_t most : {l.t, l.t + 150, l.t}) {
      for (const Kernels kernels : {Kernels::tuned, Kernels::plain}) {
        expect_same(plain, run_linear<float>(packed.image, {}, x, most, 0, kPath, kernels), "tuned");
      }
      const LinearInput some = rows_of(x, 0, (l.t + 2) / 3);
      expect_same({plain.begin(), plain.begin() + some.rows * l.n},
                  run_linear<float>(packed.image, {}, some, most, 8, kPath), "some rows");
    }
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace nibble::test
