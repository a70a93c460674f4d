// Layers of one input in one launch: the bytes that linear() leaves for each, whatever the class, tile and number of blocks.
#include <cmath>
#include <memory>
#include <span>

#include "backends/cuda/ops/linear_schedule.cuh"
#include "nibble/error.h"
#include "tests/cases/linear_cases.h"
#include "tests/cuda/linear_run.h"

namespace nibble::test {
namespace {

constexpr auto kPath = cuda::ArchPath::sm90;
constexpr int kMoreTilesThanThereAre = 16;

struct Shape {
  std::vector<std::int64_t> rows;  // of each part
  std::int64_t k;
};
const Shape kShapes[] = {
    {{200, 130, 48, 7}, 336},
    {{64, 320}, 128},
    {{128, 1, 192}, 2176},       // two segments
    {{48, 48}, 3 * 1024 + 64},   // three, in one tile of 128 rows
    {{512, 384, 48, 48}, 1088},
};

// The parts of a shape, packed, and one input for all.
class World {
 public:
  World(const Combination& c, const Shape& shape, std::int64_t t, bool fp8_unit)
      : c_(c), shape_(shape), t_(t), x_(random_input(c, {1, shape.k, t, false, false, 0}, kInputSeed + 7, kPath)) {
    std::int64_t all = 0;
    for (const std::int64_t n : shape.rows) all += n;
    std::uint64_t seed = kWeightSeed + static_cast<std::uint64_t>(shape.k);
    for (const std::int64_t n : shape.rows) {
      OwnedWeight w(c, {n, shape.k, t, false, false, 0}, seed++);
      w.weight.joined_rows = all;
      parts_.push_back(std::make_unique<OnDevice>(w.weight, staging_for(w.weight, 2), kPath, fp8_unit));
    }
  }

  // Of part 0 and every second one float32, of the others bf16, in bits; one after the other, or in one launch. The class
  // has `most` rows.
  std::vector<std::vector<float>> run(bool joined, std::int64_t most, Kernels kernels, int tile = -1) {
    const StepOnDevice step(plain_batch(std::vector<std::int32_t>(static_cast<std::size_t>(t_))));
    cuda::Launch to;
    to.step = step.device();
    to.max_rows = most;
    to.multiprocessors = kernels == Kernels::two_blocks ? 2 : multiprocessors();
    if (kernels != Kernels::plain) to.sums = linear_sums();
    cuda::LinearArgs of;
    of.format = format_of(c_.kind);
    of.path = kPath;
    std::unique_ptr<DeviceMatrix<std::uint16_t>> values;
    std::unique_ptr<DeviceMatrix<std::uint8_t>> codes;
    std::unique_ptr<DeviceMatrix<float>> scales;
    if (of.format.kind == Kind::none) {
      values = std::make_unique<DeviceMatrix<std::uint16_t>>(with_rows(x_.values, t_, most), most, shape_.k, (8 - shape_.k % 8) % 8);
      of.x = values->view();
    } else {
      codes = std::make_unique<DeviceMatrix<std::uint8_t>>(with_rows(x_.codes, t_, most), most, shape_.k, gap_of(shape_.k, kAligned));
      scales = std::make_unique<DeviceMatrix<float>>(with_rows(x_.scales, t_, most), most, 1, 2);
      of.x = codes->view();
      of.x_scales = scales->view();
    }
    of.tile = tile;
    std::vector<std::unique_ptr<DeviceMatrix<float>>> wide;
    std::vector<std::unique_ptr<DeviceMatrix<std::uint16_t>>> narrow;
    std::vector<cuda::LinearArgs> all;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      cuda::LinearArgs a = of;
      a.weight = parts_[i]->image;
      const std::int64_t n = a.weight.rows, gap = static_cast<std::int64_t>(i);
      wide.push_back(std::make_unique<DeviceMatrix<float>>(most, i % 2 == 0 ? n : 1, gap));
      narrow.push_back(std::make_unique<DeviceMatrix<std::uint16_t>>(most, i % 2 == 1 ? n : 1, gap));
      a.y = i % 2 == 0 ? wide.back()->view() : narrow.back()->view();
      all.push_back(a);
    }
    if (joined) {
      EXPECT_EQ(cuda::refuse_joined(to, all), nullptr);
      if (tile >= 0) {
        const std::vector<cuda::LinearTile> tiles = cuda::linear_tiles(to, all.front());
        const auto at = static_cast<std::size_t>(tile);
        if (at >= tiles.size() || !tiles[at].refusal.empty()) return {};
      }
      try {
        cuda::joined_linears(to, all);
      } catch (const Error& e) {  // all rows together may be too many for a tile that takes those of the first
        if (tile >= 0 && std::string(e.what()).find("there is no room") != std::string::npos) return {};
        throw;
      }
    } else {
      for (const cuda::LinearArgs& a : all) cuda::linear(to, a);
    }
    finish_device();
    std::vector<std::vector<float>> out;
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(wide[i]->damage(), "");
      EXPECT_EQ(narrow[i]->damage(), "");
      std::vector<float> y;
      if (i % 2 == 0) {
        y = wide[i]->download();
      } else {
        for (const std::uint16_t bits : narrow[i]->download()) y.push_back(num::bf16_to_float(bits));
      }
      out.push_back(std::move(y));  // rows past the step's count too: both leave them as they were
    }
    return out;
  }

 private:
  Combination c_;
  Shape shape_;
  std::int64_t t_;
  LinearInput x_;
  std::vector<std::unique_ptr<OnDevice>> parts_;
};

void expect_parts(const std::vector<std::vector<float>>& want, const std::vector<std::vector<float>>& found, std::int64_t t,
                  const Shape& shape, const std::string& what) {
  ASSERT_EQ(want.size(), found.size()) << what;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const auto count = static_cast<std::ptrdiff_t>(t * shape.rows[i]);
    const std::vector<float> a(want[i].begin(), want[i].begin() + count), b(found[i].begin(), found[i].begin() + count);
    expect_same(a, b, (what + ", part " + std::to_string(i)).c_str());
    for (auto rest = found[i].begin() + count; rest != found[i].end(); ++rest) {
      ASSERT_TRUE(std::isnan(*rest)) << what << ", part " << i << ": a row past the step's count was written";
    }
  }
}

void check(const Combination& c, bool fp8_unit, const std::vector<std::int64_t>& row_counts) {
  for (const Shape& shape : kShapes) {
    for (const std::int64_t t : row_counts) {
      SCOPED_TRACE(combination_name(c) + ", " + std::to_string(shape.rows.size()) + " parts, K " + std::to_string(shape.k) +
                   ", T " + std::to_string(t));
      World world(c, shape, t, fp8_unit);
      const auto want = world.run(false, t, Kernels::plain);
      for (const std::int64_t most : {t, t + 40, t + 300}) {
        for (const Kernels kernels : {Kernels::tuned, Kernels::two_blocks}) {
          expect_parts(want, world.run(true, most, kernels), t, shape, "a class of " + std::to_string(most));
          if (testing::Test::HasFatalFailure()) return;
        }
      }
      for (int tile = 0; tile < kMoreTilesThanThereAre; ++tile) {
        const auto found = world.run(true, t, Kernels::two_blocks, tile);
        if (!found.empty()) expect_parts(want, found, t, shape, "tile " + std::to_string(tile));
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

const std::vector<std::int64_t> kRows{1, 8, 9, 31, 70, 260};

class LinearJoined : public testing::TestWithParam<Combination> {};
TEST_P(LinearJoined, EqualsLayerByLayer) {
  NIBBLE_NEEDS_DEVICE();
  if (!cuda::has_wgmma()) GTEST_SKIP() << "the card runs no code for sm_90a: layers are not joined";
  check(GetParam(), GetParam().kind == Kind::fp8_token, kRows);
}
INSTANTIATE_TEST_SUITE_P(All, LinearJoined,
                         testing::Values(Combination{WeightFormat::nvfp4, ScaleLayout::tensor, Kind::none},
                                         Combination{WeightFormat::nvfp4, ScaleLayout::row, Kind::none},
                                         Combination{WeightFormat::fp8_e4m3, ScaleLayout::row, Kind::none},
                                         Combination{WeightFormat::bf16, ScaleLayout::none, Kind::none},
                                         Combination{WeightFormat::fp8_e4m3, ScaleLayout::row, Kind::fp8_token}),
                         [](const auto& c) { return combination_name(c.param); });

// For tools that slow a kernel down a hundred times.
TEST(LinearSmallJoined, EveryTile) {
  NIBBLE_NEEDS_DEVICE();
  if (!cuda::has_wgmma()) GTEST_SKIP() << "the card runs no code for sm_90a: layers are not joined";
  check({WeightFormat::nvfp4, ScaleLayout::tensor, Kind::none}, false, {1, 17});
}

TEST(LinearJoinedRefusals, EachSaysWhy) {
  NIBBLE_NEEDS_DEVICE();
  if (!cuda::has_wgmma()) GTEST_SKIP() << "the card runs no code for sm_90a: layers are not joined";
  cuda::Launch to;
  to.max_rows = 8;
  to.multiprocessors = multiprocessors();
  to.sums = linear_sums();
  alignas(16) static std::byte x[16], other[16];
  cuda::LinearArgs a;
  a.path = kPath;
  a.x = {x, DType::bf16, Rows::tokens, 64, 64};
  a.y = {x, DType::f32, Rows::tokens, 64, 64};
  a.weight.format = WeightFormat::bf16;
  a.weight.rows = a.weight.order_rows = a.weight.padded_rows = 64;
  a.weight.cols = a.weight.padded_cols = 64;
  a.weight.plain = true;
  std::vector<cuda::LinearArgs> two{a, a};
  EXPECT_EQ(cuda::refuse_joined(to, two), nullptr);
  EXPECT_STREQ(cuda::refuse_joined(to, std::span(two).first(1)), "there is one");
  EXPECT_STREQ(cuda::refuse_joined(to, std::vector<cuda::LinearArgs>(5, a)), "there are more than four");
  two[1].x.data = other;
  EXPECT_STREQ(cuda::refuse_joined(to, two), "they read different inputs");
  EXPECT_THROW(cuda::joined_linears(to, two), Error);
  two[1] = a;
  two[1].weight.cols = 128;
  EXPECT_STREQ(cuda::refuse_joined(to, two), "weights differ in format");
  two[1] = a;
  two[1].weight.order_rows = 128;
  EXPECT_STREQ(cuda::refuse_joined(to, two), "their sums are not cut alike");
  two[1] = a;
  two[1].weight.gate_up = true;
  EXPECT_STREQ(cuda::refuse_joined(to, two), "a weight is of gate and up");
  two[1] = a;
  static const float block = 1;
  two[1].weight.block = &block;
  EXPECT_STREQ(cuda::refuse_joined(to, two), "weights have scales of 128x128 blocks");
  to.sums = nullptr;
  two[1] = a;
  EXPECT_STREQ(cuda::refuse_joined(to, two), "their kernel takes one weight");
}

}  // namespace
}  // namespace nibble::test
