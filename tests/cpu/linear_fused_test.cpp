// Linear of each mirrored profile against a plain triple loop over the scalar models: formats x
// activations x shapes x rows x instruction sets x threads.
#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "core/numerics/row_scale.h"
#include "tests/cpu/linear_fused_reference.h"

namespace nibble {
namespace {

using namespace test;  // its reference, all of it

// Seven threads also where the machine has fewer processors.
const oneapi::tbb::global_control kThreads(oneapi::tbb::global_control::max_allowed_parallelism, 8);

constexpr std::int64_t kRows[] = {1, 2, 3, 5, 17, 64, 65};

struct Tested {
  Profile profile;
  WeightFormat format;
  ScaleLayout layout;
};
std::vector<Tested> all_tested() {
  using F = WeightFormat;
  using L = ScaleLayout;
  std::vector<Tested> all;
  for (const Profile p : {Profile::sm90, Profile::sm70, Profile::sm120}) {
    for (const L l : {L::tensor, L::row}) all.push_back({p, F::nvfp4, l});
    for (const F f : {F::f32, F::f16, F::bf16}) all.push_back({p, f, L::none});
    if (p == Profile::sm120) continue;  // else as sm90
    for (const L l : {L::tensor, L::row, L::block128}) all.push_back({p, F::fp8_e4m3, l});
    all.push_back({p, F::bf16, L::row});
  }
  return all;
}
struct Shape {
  std::int64_t n, k;
};
// Tails of panels, groups and segments; two and three segments; blocks of 128.
constexpr Shape kShapes[] = {{1, 16}, {33, 272}, {7, 1}, {17, 131}, {131, 400}, {5, 2208}, {19, 3333}};

class LinearFused : public testing::TestWithParam<Tested> {};

TEST_P(LinearFused, EqualsATripleLoop) {
  Parallel one(1), two(2), seven(7);
  const Profile profile = GetParam().profile;
  int compared = 0;
  for (const Shape& s : kShapes) {
    if (GetParam().format == WeightFormat::nvfp4 && s.k % 16 != 0) continue;
    const RandomWeight w(GetParam().format, GetParam().layout, s.n, s.k, 11);
    const Operands ops(profile, w.weight);
    for (const Kind kind : {Kind::none, Kind::nvfp4_static, Kind::fp8_tensor_static, Kind::fp8_token,
                            Kind::fp8_token_group128}) {
      if (kind == Kind::nvfp4_static && s.k % 16 != 0) continue;
      Input in(profile, kind, s.k, 5);
      const std::vector<float> want = expected(w.weight, ops, in);
      for (const Isa isa : cpu::available_isas()) {
        const test::Aligned arena(cpu::packed_bytes(w.weight, cpu::weight_operand(profile)));
        const auto packed = cpu::pack(w.weight, arena.data, one, cpu::nibble_order(isa),
                                      cpu::weight_operand(profile));
        for (const std::int64_t rows : kRows) {
          for (Parallel* parallel : {&one, &two, &seven}) {
            // The first and the last rows: where a row lies in the batch changes nothing.
            for (const std::int64_t first : {std::int64_t{0}, kMost - rows}) {
              Guarded y(rows, s.n);
              run(isa, *parallel, packed, in, first, rows, y);
              ASSERT_EQ(y.damage(), "");
              for (std::int64_t t = 0; t < rows; ++t) {
                for (std::int64_t n = 0; n < s.n; ++n) {
                  const float e = want[static_cast<std::size_t>((first + t) * s.n + n)];
                  ASSERT_TRUE(test::same_bits(y.at(t, n), e))
                      << cpu::isa_name(isa) << " x " << activation_format_name(kind) << " N " << s.n
                      << " K " << s.k << " T " << rows << " threads " << parallel->threads() << " y["
                      << t << ", " << n << "] " << y.at(t, n) << " != " << e;
                }
              }
              ++compared;
            }
          }
        }
      }
    }
  }
  EXPECT_GE(compared, 300);
}

const char* profile_name(Profile p) {
  return p == Profile::sm70 ? "sm70" : p == Profile::sm90 ? "sm90" : "sm120";
}
std::string tested_name(const testing::TestParamInfo<Tested>& tested) {
  constexpr const char* kLayouts[] = {"none", "tensor", "row", "block"};
  return std::string(profile_name(tested.param.profile)) + "_" +
         weight_format_name(tested.param.format) + "_" + kLayouts[static_cast<int>(tested.param.layout)];
}
INSTANTIATE_TEST_SUITE_P(All, LinearFused, testing::ValuesIn(all_tested()), tested_name);

// What no trained weight holds: NaN, infinities, subnormals and the largest values on both sides.
class LinearFusedEdges : public testing::TestWithParam<std::pair<Profile, WeightFormat>> {};

TEST_P(LinearFusedEdges, EqualsATripleLoop) {
  constexpr std::int64_t kN = 37, kK = 160;
  const auto [profile, format] = GetParam();
  std::mt19937 random(4);
  Weight w;
  w.name = "edges";
  w.format = format;
  w.rows = kN;
  w.cols = kK;
  const auto edge = [&]() -> float {
    constexpr float kEdges[] = {0,          -0.0f,       0x1p-133f, -0x1p-127f, 0x1p-126f,
                                0x1.FEp127f, -0x1.FEp127f, INFINITY,  NAN,        65504.0f};
    return random() % 40 == 0 ? kEdges[random() % 10]
                              : 0.5f + static_cast<float>(random() % 1024) / 1024.0f;
  };
  std::vector<std::byte> bytes;
  const auto put = [&](auto v) {
    const auto at = bytes.size();
    bytes.resize(at + sizeof v);
    std::memcpy(&bytes[at], &v, sizeof v);
  };
  for (std::int64_t i = 0; i < kN * kK; ++i) {
    float v = edge();
    if (i / kK == 3) v = 0;         // a row of zeros,
    if (i / kK == 4) v = NAN;       // one without a finite value,
    if (i / kK == 5) v *= 0x1p-130f;  // one of subnormals
    if (format == WeightFormat::f32) put(v);
    if (format == WeightFormat::bf16) put(num::float_to_bf16(v));
    if (format == WeightFormat::f16) put(num::float_to_f16(v));
  }
  w.codes = bytes;
  Input in(profile, Kind::none, kK, 8);
  for (std::size_t i = 0; i < in.x.size(); i += 7) in.x[i] = edge();
  for (std::int64_t c = 0; c < kK; ++c) in.at(6, c) = 0x1.FFFFFEp127f;  // rounds to 2^128
  in.round_rows();
  const std::vector<float> want = expected(w, Operands(profile, w), in);
  Parallel one(1);
  for (const Isa isa : cpu::available_isas()) {
    const test::Aligned arena(cpu::packed_bytes(w, cpu::weight_operand(profile)));
    const auto packed =
        cpu::pack(w, arena.data, one, cpu::nibble_order(isa), cpu::weight_operand(profile));
    Guarded y(9, kN);
    run(isa, one, packed, in, 0, 9, y);
    for (std::int64_t t = 0; t < 9; ++t) {
      for (std::int64_t n = 0; n < kN; ++n) {
        const float e = want[static_cast<std::size_t>(t * kN + n)];
        ASSERT_TRUE(test::same_bits(y.at(t, n), e)) << t << " " << n << " " << y.at(t, n) << " " << e;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, LinearFusedEdges,
    testing::Values(std::pair{Profile::sm90, WeightFormat::bf16}, std::pair{Profile::sm90, WeightFormat::f32},
                    std::pair{Profile::sm70, WeightFormat::bf16}, std::pair{Profile::sm70, WeightFormat::f16},
                    std::pair{Profile::sm70, WeightFormat::f32}),
    [](const auto& tested) {
      return std::string(profile_name(tested.param.first)) + "_" + weight_format_name(tested.param.second);
    });

// The rounding step itself: rows of every size, against std::ldexp; what it leaves is what it would leave.
TEST(RowsOfF16, HoldTheRowsValuesWithOneExponent) {
  constexpr std::int64_t kRowCount = 40, kCols = 33;
  std::mt19937 random(9);
  std::vector<float> x(kRowCount * kCols), y;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const int top = static_cast<int>(i / kCols) * 7 - 146;
    const float v = std::ldexp(1.0f + static_cast<float>(random() % 8192) / 8192.0f,
                               top - static_cast<int>(random() % 30));
    x[i] = random() % 2 == 0 ? v : -v;
  }
  x[5 * kCols] = INFINITY;
  x[6 * kCols + 1] = NAN;
  for (std::int64_t c = 0; c < kCols; ++c) {
    x[static_cast<std::size_t>(7 * kCols + c)] = 0;
    x[static_cast<std::size_t>(39 * kCols + c)] = 0x1.FFFp127f;
  }
  y = x;
  std::vector<std::int32_t> exponents(kRowCount, -1), again = exponents;
  Parallel two(2);
  cpu::round_f16(two, kRowCount, kCols, {y.data(), kCols}, exponents.data());
  for (std::int64_t r = 0; r < kRowCount; ++r) {
    const std::span<const float> row(&x[static_cast<std::size_t>(r * kCols)], kCols);
    const int e = std::max(row_exponent(row, 0), 0);
    EXPECT_EQ(exponents[static_cast<std::size_t>(r)], e) << r;
    for (std::int64_t c = 0; c < kCols; ++c) {
      const float want = std::ldexp(to_f16(row[static_cast<std::size_t>(c)], e), e);
      ASSERT_TRUE(test::same_bits(y[static_cast<std::size_t>(r * kCols + c)], want)) << r << " " << c;
    }
  }
  EXPECT_EQ(y[39 * kCols], INFINITY);
  EXPECT_EQ(exponents[39], num::kMostRowExponent);
  EXPECT_EQ(num::activation_to_f16(-0x1.FFFFFEp127f, num::kMostRowExponent), 0xFC00u);
  EXPECT_EQ(num::activation_to_f16(0x1.FFCp127f, num::kMostRowExponent), 0x77FFu);
}

}  // namespace
}  // namespace nibble
