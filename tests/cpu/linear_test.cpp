// Linear against the text of its contract, by bytes: formats x scales x shapes x rows x instruction
// sets x threads; batch invariance; double; golden W4A16.
#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>

#include <algorithm>
#include <memory>

#include "nibble/error.h"
#include "tests/cpu/linear_reference.h"
#include "tests/support/buffers.h"
#include "tests/support/complaint.h"
#include "tests/support/golden.h"

namespace nibble {
namespace {

using cpu::Isa;
using cpu::Parallel;
using test::complaint;
using test::Guarded;

// Seven threads also where the machine has fewer processors.
const oneapi::tbb::global_control kThreads(oneapi::tbb::global_control::max_allowed_parallelism, 8);

struct Format {
  WeightFormat format;
  ScaleLayout layout;
};
constexpr Format kFormats[] = {
    {WeightFormat::f32, ScaleLayout::none},     {WeightFormat::f16, ScaleLayout::none},
    {WeightFormat::bf16, ScaleLayout::none},    {WeightFormat::fp8_e4m3, ScaleLayout::tensor},
    {WeightFormat::fp8_e4m3, ScaleLayout::row}, {WeightFormat::fp8_e4m3, ScaleLayout::block128},
    {WeightFormat::nvfp4, ScaleLayout::tensor}, {WeightFormat::nvfp4, ScaleLayout::row},
    {WeightFormat::nvfp4, ScaleLayout::none},
};
struct Shape {
  std::int64_t n, k;
};
// N: less than a panel, not a multiple of one, across 128; K: tails of chunks, segments, pairs of
// segments.
constexpr Shape kShapes[] = {{1, 16},   {16, 128}, {33, 272}, {130, 400},
                             {48, 640}, {7, 1},    {17, 131}, {40, 259}};
constexpr std::int64_t kRows[] = {1, 2, 3, 4, 5, 6, 7, 11, 13, 24, 31, 70};

std::vector<float> random_rows(std::int64_t rows, std::int64_t stride, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(rows * stride));
  for (float& v : x) v = normal(random);
  return x;
}

struct Packed {
  test::Aligned arena;
  cpu::PackedWeight weight;
  Packed(const Weight& w, Parallel& parallel, Isa isa)
      : arena(cpu::packed_bytes(w)),
        weight(cpu::pack(w, arena.data, parallel, cpu::nibble_order(isa))) {}
};

void run(Isa isa, Parallel& parallel, const cpu::PackedWeight& w, std::int64_t rows, const float* x,
         std::int64_t x_stride, Guarded& y) {
  cpu::LinearArgs a;
  a.weight = &w;
  a.rows = rows;
  a.x = x;
  a.x_stride = x_stride;
  a.y = y.data();
  a.y_stride = y.stride();
  cpu::linear(isa, parallel, a);
}

class LinearFormats : public testing::TestWithParam<Format> {};

TEST_P(LinearFormats, EqualsTheContractByBytes) {
  constexpr std::int64_t kMost = 70;
  Parallel one(1), two(2), seven(7);
  int compared = 0;
  for (const Shape& s : kShapes) {
    if (GetParam().format == WeightFormat::nvfp4 && s.k % 16 != 0) continue;
    const test::RandomWeight w(GetParam().format, GetParam().layout, s.n, s.k, 11);
    const auto ops = test::operands(w.weight);
    const std::int64_t x_stride = s.k + 5;
    const auto x = random_rows(kMost, x_stride, 5);
    std::vector<float> want(static_cast<std::size_t>(kMost * s.n));
    for (std::int64_t t = 0; t < kMost; ++t) {
      for (std::int64_t n = 0; n < s.n; ++n) {
        const float* row = x.data() + t * x_stride;
        const float v = test::reference_dot(w.weight, ops, n, row, nullptr, 1.0f);
        want[static_cast<std::size_t>(t * s.n + n)] = v;
        double magnitude;
        const double exact = test::exact_dot(w.weight, ops, n, row, &magnitude);
        // 128 roundings of a chain, one for each segment, two scales; seen below a tenth of it
        ASSERT_LE(std::abs(v - exact),
                  magnitude * 0x1p-24 *
                      static_cast<double>(std::min<std::int64_t>(s.k, 128) + s.k / 128 + 4));
      }
    }
    for (const Isa isa : cpu::available_isas()) {
      const Packed packed(w.weight, two, isa);
      for (const std::int64_t rows : kRows) {
        for (Parallel* parallel : {&one, &two, &seven}) {
          // The first and the last rows: where a row lies in the batch changes nothing.
          for (const std::int64_t first : {std::int64_t{0}, kMost - rows}) {
            Guarded y(rows, s.n);
            run(isa, *parallel, packed.weight, rows, x.data() + first * x_stride, x_stride, y);
            ASSERT_EQ(y.damage(), "");
            for (std::int64_t t = 0; t < rows; ++t) {
              for (std::int64_t n = 0; n < s.n; ++n) {
                const float e = want[static_cast<std::size_t>((first + t) * s.n + n)];
                ASSERT_TRUE(test::same_bits(y.at(t, n), e))
                    << cpu::isa_name(isa) << " N " << s.n << " K " << s.k << " T " << rows
                    << " threads " << parallel->threads() << " y[" << t << ", " << n << "] "
                    << y.at(t, n) << " != " << e;
              }
            }
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_GE(compared, 300);
}
std::string format_name(const testing::TestParamInfo<Format>& tested) {
  constexpr const char* kLayouts[] = {"none", "tensor", "row", "block"};
  return std::string(weight_format_name(tested.param.format)) + "_" +
         kLayouts[static_cast<int>(tested.param.layout)];
}
INSTANTIATE_TEST_SUITE_P(All, LinearFormats, testing::ValuesIn(kFormats), format_name);

// Rows beyond one block of the large-T loop, panels beyond one group.
TEST(Linear, ManyRowsEqualOneRow) {
  constexpr std::int64_t kN = 16 * 9 + 3, kK = 256 + 48, kT = 301;
  const test::RandomWeight w(WeightFormat::nvfp4, ScaleLayout::tensor, kN, kK, 2);
  const auto x = random_rows(kT, kK, 3);
  for (const Isa isa : cpu::available_isas()) {
    Parallel one(1), three(3);
    const Packed packed(w.weight, three, isa);
    Guarded all(kT, kN), alone(1, kN);
    run(isa, three, packed.weight, kT, x.data(), kK, all);
    EXPECT_EQ(all.damage(), "");
    for (std::int64_t t = 0; t < kT; ++t) {
      run(isa, one, packed.weight, 1, x.data() + t * kK, kK, alone);
      for (std::int64_t n = 0; n < kN; ++n)
        ASSERT_TRUE(test::same_bits(all.at(t, n), alone.at(0, n))) << t << " " << n;
    }
  }
}

// Every code of a format, NaN, infinities and subnormals among them, through both loops.
TEST(Linear, EveryCode) {
  for (const WeightFormat format :
       {WeightFormat::fp8_e4m3, WeightFormat::f16, WeightFormat::bf16}) {
    const std::int64_t codes = format == WeightFormat::fp8_e4m3 ? 256 : 65536;
    Weight w;
    w.name = "all";
    w.format = format;
    w.rows = codes;
    w.cols = 1;
    std::vector<std::byte> bytes;
    for (std::int64_t c = 0; c < codes; ++c) {
      bytes.push_back(static_cast<std::byte>(c & 255));
      if (codes > 256) bytes.push_back(static_cast<std::byte>(c >> 8));
    }
    w.codes = bytes;
    const std::vector<float> x(5, 1.0f);
    for (const Isa isa : cpu::available_isas()) {
      Parallel one(1);
      const Packed packed(w, one, isa);
      for (const std::int64_t rows : {1, 5}) {
        Guarded y(rows, codes);
        run(isa, one, packed.weight, rows, x.data(), 1, y);
        for (std::int64_t c = 0; c < codes; ++c) {
          const float e = 0.0f + std::fma(1.0f, test::operand(w, c, 0), 0.0f);
          ASSERT_TRUE(test::same_bits(y.at(rows - 1, c), e)) << c;
        }
      }
    }
  }
}

// All 16 x 256 pairs of code and block scale.
TEST(Linear, EveryNvfp4Pair) {
  Weight w;
  w.name = "pairs";
  w.format = WeightFormat::nvfp4;
  w.rows = 4096;
  w.cols = 16;
  std::vector<std::byte> codes, scales;
  for (int n = 0; n < 4096; ++n) {
    for (int i = 0; i < 8; ++i)
      codes.push_back(i == 2 ? static_cast<std::byte>(n & 15) : std::byte{0});  // k = 4
    scales.push_back(static_cast<std::byte>(n >> 4));
  }
  w.codes = codes;
  w.block_scales = scales;
  std::vector<float> x(16 * 5, 0.0f);
  for (int t = 0; t < 5; ++t) x[static_cast<std::size_t>(t * 16 + 4)] = 1.0f;
  for (const Isa isa : cpu::available_isas()) {
    Parallel one(1);
    const Packed packed(w, one, isa);
    const auto ops = test::operands(w);
    for (const std::int64_t rows : {1, 5}) {
      Guarded y(rows, 4096);
      run(isa, one, packed.weight, rows, x.data(), 16, y);
      for (std::int64_t n = 0; n < 4096; ++n) {
        const float e = test::reference_dot(w, ops, n, x.data(), nullptr, 1.0f);
        ASSERT_TRUE(test::same_bits(y.at(rows - 1, n), e))
            << n << " " << y.at(rows - 1, n) << " " << e;
      }
    }
  }
}

// The other order of nibbles, which AVX-512 reads, through the portable loops.
TEST(Linear, BothNibbleOrders) {
  const test::RandomWeight w(WeightFormat::nvfp4, ScaleLayout::row, 37, 208, 8);
  const auto x = random_rows(6, 208, 9);
  Parallel one(1);
  for (const std::int64_t rows : {2, 6}) {
    Guarded a(rows, 37), b(rows, 37);
    for (const auto order : {cpu::NibbleOrder::bytes, cpu::NibbleOrder::words}) {
      const test::Aligned arena(cpu::packed_bytes(w.weight));
      const auto packed = cpu::pack(w.weight, arena.data, one, order);
      run(Isa::portable, one, packed, rows, x.data(), 208,
          order == cpu::NibbleOrder::bytes ? a : b);
    }
    for (std::int64_t t = 0; t < rows; ++t) {
      for (std::int64_t n = 0; n < 37; ++n) ASSERT_TRUE(test::same_bits(a.at(t, n), b.at(t, n)));
    }
  }
}

TEST(Linear, GoldenW4a16) {
  const test::Golden g(NIBBLE_TEST_DATA "/golden/nvfp4.safetensors");
  const auto codes = g.u8("gemm.w_packed"), scales = g.u8("gemm.w_scale_bytes");
  const auto x = g.f32("act.x");
  const auto want = g.f64("gemm.out_w4a16");
  Weight w;
  w.name = "gemm";
  w.format = WeightFormat::nvfp4;
  w.rows = 24;
  w.cols = 128;
  w.codes = std::as_bytes(std::span(codes));
  w.block_scales = std::as_bytes(std::span(scales));
  w.scale_layout = ScaleLayout::tensor;
  w.scales = g.f32("gemm.weight_scale_2");
  const auto ops = test::operands(w);
  double worst = 0;
  for (const Isa isa : cpu::available_isas()) {
    Parallel one(1);
    const Packed packed(w, one, isa);
    Guarded y(4, 24);
    run(isa, one, packed.weight, 4, x.data(), 128, y);
    for (std::int64_t t = 0; t < 4; ++t) {
      for (std::int64_t n = 0; n < 24; ++n) {
        double magnitude;
        test::exact_dot(w, ops, n, x.data() + t * 128, &magnitude);
        worst = std::max(
            worst, std::abs(y.at(t, n) - want[static_cast<std::size_t>(t * 24 + n)]) / magnitude);
      }
    }
  }
  RecordProperty("relative", std::to_string(worst * 0x1p24) + " x 2^-24");
  EXPECT_LE(worst, 4 * 0x1p-24);
}

TEST(Pack, RefusesWhatDoesNotFit) {
  const auto bad = [](auto change) {
    test::RandomWeight w(WeightFormat::nvfp4, ScaleLayout::tensor, 32, 64, 1);
    w.weight.name = "layers.0.mlp";
    change(w.weight);
    Parallel one(1);
    return complaint([&] {
      const test::Aligned arena(std::min<std::uint64_t>(cpu::packed_bytes(w.weight), 1 << 20));
      cpu::pack(w.weight, arena.data, one, cpu::NibbleOrder::bytes);
    });
  };
  EXPECT_EQ(bad([](Weight&) {}), "");
  EXPECT_EQ(bad([](Weight& w) { w.cols = 60; }),
            "[pack] layers.0.mlp: expected a multiple of 16 columns for nvfp4, found 60");
  EXPECT_NE(bad([](Weight& w) { w.rows = 0; }).find("found [0, 64]"), std::string::npos);
  EXPECT_NE(bad([](Weight& w) { w.rows = 33; }).find("expected 1056 bytes of codes, found 1024"),
            std::string::npos);
  EXPECT_NE(bad([](Weight& w) { w.scales.clear(); }).find("expected 1 scales, found 0"),
            std::string::npos);
  EXPECT_NE(bad([](Weight& w) { w.scale_layout = ScaleLayout::block128; }).find("128x128"),
            std::string::npos);
  EXPECT_NE(bad([](Weight& w) {
              w.block_scales = w.block_scales.first(9);
            }).find("block scales, found 9"),
            std::string::npos);
  EXPECT_NE(bad([](Weight& w) { w.rows = w.cols = std::int64_t{1} << 40; }).find("2^31"),
            std::string::npos);
  EXPECT_NE(bad([](Weight& w) {
              w.rows = w.cols = std::int64_t{1} << 31;
              w.format = WeightFormat::f32;
            }).find("2^62"),
            std::string::npos);
}

}  // namespace
}  // namespace nibble
