#include "core/checkpoint/row_runs.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "core/checkpoint/synthetic.h"
#include "core/parity/weight_rows.h"
#include "tests/checkpoint/support.h"

namespace nibble {
namespace {

using test::complaint;

std::vector<double> row_of(const Weight& w, std::int64_t r) {
  std::vector<double> out(static_cast<std::size_t>(w.cols));
  weight_row(w, r, out.data());
  return out;
}

Weight made(Weight w) {
  if (w.materialize) w.materialize(w);
  return w;
}

// As if it lay in a file.
Weight stored(SyntheticFormat format, std::int64_t rows, std::int64_t cols) {
  Weight w = made(*SyntheticSource(7, {format, {}}).make_matrix("model.layers.0.x", rows, cols));
  w.materialize = nullptr;
  return w;
}

// FP8 with a scale for each block, every one another.
Weight blocks(std::int64_t rows, std::int64_t cols) {
  Weight w = stored(SyntheticFormat::mlp_nvfp4_rest_fp8, rows, cols);
  w.scale_layout = ScaleLayout::block128;
  w.scales.resize(static_cast<std::size_t>((rows + 127) / 128 * ((cols + 127) / 128)));
  std::iota(w.scales.begin(), w.scales.end(), 1.0f);
  return w;
}

void expect_rows(const Weight& part, const Weight& whole, std::span<const RowRun> runs) {
  std::int64_t r = 0;
  for (const RowRun& run : runs) {
    for (std::int64_t i = 0; i < run.count; ++i, ++r) EXPECT_EQ(row_of(part, r), row_of(whole, run.first + i)) << r;
  }
  EXPECT_EQ(part.rows, r);
}

TEST(RowRuns, EveryFormat) {
  const RowRun several[] = {{5, 3}, {0, 2}, {8, 4}, {2, 1}}, one[] = {{4, 6}};
  for (const auto format : {SyntheticFormat::f32, SyntheticFormat::bf16, SyntheticFormat::nvfp4,
                            SyntheticFormat::mlp_nvfp4_rest_fp8}) {
    const Weight whole = stored(format, 12, 48);
    for (const std::span<const RowRun> runs : {std::span<const RowRun>(several), std::span<const RowRun>(one)}) {
      const Weight part = rows_of(whole, "part", runs);
      EXPECT_EQ(part.name, "part");
      EXPECT_EQ(part.making_bytes, 0u);
      const Weight now = made(part);
      expect_rows(now, whole, runs);
      EXPECT_EQ(now.bytes(), part.bytes());
    }
  }
}

TEST(RowRuns, OneRunIsAViewAndNeighboursAreOneRun) {
  const Weight whole = stored(SyntheticFormat::nvfp4, 12, 32);
  const RowRun halves[] = {{3, 2}, {5, 4}};
  const Weight part = rows_of(whole, "part", halves);
  EXPECT_FALSE(part.materialize);
  EXPECT_EQ(part.owner, whole.owner);
  EXPECT_EQ(part.codes.data(), whole.codes.data() + 3 * 16);
  EXPECT_EQ(part.block_scales.data(), whole.block_scales.data() + 3 * 2);
  expect_rows(part, whole, halves);
}

TEST(RowRuns, OfAWeightThatMakesItself) {
  const SyntheticSource source(7, {SyntheticFormat::nvfp4, {}});
  const Weight whole = *source.make_matrix("model.layers.0.x", 12, 32);
  const RowRun runs[] = {{4, 6}};
  const Weight part = rows_of(whole, "part", runs);
  EXPECT_EQ(part.making_bytes, whole.bytes());
  expect_rows(made(part), made(whole), runs);
}

TEST(RowRuns, BlocksOfScalesMoveWhole) {
  const Weight whole = blocks(600, 300);
  const RowRun order[] = {{256, 128}, {0, 128}, {512, 88}};
  expect_rows(made(rows_of(whole, "part", order)), whole, order);
  for (const std::vector<RowRun>& cut :
       {std::vector<RowRun>{{64, 128}}, std::vector<RowRun>{{0, 100}}, std::vector<RowRun>{{512, 88}, {0, 128}}}) {
    const std::string message = complaint([&] { rows_of(whole, "part", cut); }, ErrorCode::unsupported);
    EXPECT_NE(message.find("whole 128 x 128 blocks"), std::string::npos) << message;
  }
}

TEST(RowRuns, OutOfRange) {
  const Weight whole = stored(SyntheticFormat::bf16, 12, 32);
  for (const RowRun run : {RowRun{-1, 2}, RowRun{11, 2}, RowRun{0, 0}, RowRun{0, 13}}) {
    EXPECT_NE(complaint([&] { rows_of(whole, "part", {&run, 1}); }, ErrorCode::internal), "");
  }
  EXPECT_NE(complaint([&] { rows_of(whole, "part", {}); }, ErrorCode::internal), "");
}

}  // namespace
}  // namespace nibble
