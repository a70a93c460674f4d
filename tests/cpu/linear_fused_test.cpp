// Linear of each 16-bit profile against a plain triple loop over the scalar models: formats x
// activations x shapes x rows x instruction sets x threads.
#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <utility>

#include "core/numerics/row_scale.h"
#include "tests/cpu/linear_fused_reference.h"

namespace nibble {
namespace {

using namespace test;  // its reference, all of it

// Seven threads also where the machine has fewer processors.
const oneapi::tbb::global_control kThreads(oneapi::tbb::global_control::max_allowed_parallelism, 8);


struct Tested {
  Profile profile;
  WeightFormat format;
  ScaleLayout layout;
};
std::vector<Tested> all_tested() {
  using F = WeightFormat;
  using L = ScaleLayout;
  std::vector<Tested> all;
  for (const Profile p : {Profile::sm90, Profile::sm70, Profile::bf16, Profile::sm120}) {
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

struct Case {
  Shape shape;
  Kind kind;
  std::int64_t joined_rows = 0;  // Weight's
};
// Both sides' NVFP4 come in blocks of 16.
std::vector<Case> cases_of(WeightFormat format) {
  std::vector<Case> cases;
  for (const Shape& s : kShapes) {
    for (const Kind kind : {Kind::none, Kind::nvfp4_static, Kind::fp8_tensor_static, Kind::fp8_token,
                            Kind::fp8_token_group128}) {
      const bool blocks = format == WeightFormat::nvfp4 || kind == Kind::nvfp4_static;
      if (blocks && s.k % 16 != 0) continue;
      cases.push_back({s, kind});
      if (kind == Kind::none && s.k >= 2048) cases.push_back({s, kind, 81 * 128});  // one segment, where there are more
    }
  }
  return cases;
}

class LinearFused : public testing::TestWithParam<Tested> {};

TEST_P(LinearFused, EqualsATripleLoop) {
  Parallel one(1), two(2), seven(7);
  const Profile profile = GetParam().profile;
  for (const auto& [s, kind, joined_rows] : cases_of(GetParam().format)) {
    RandomWeight w(GetParam().format, GetParam().layout, s.n, s.k, 11);
    w.weight.joined_rows = joined_rows;
    Input in(profile, kind, s.k, 5);
    const std::vector<float> want = expected(w.weight, Operands(profile, w.weight), in);
    for (const Kernels& kernels : cpu::available_kernels(profile == Profile::bf16)) {
      const test::Aligned arena(cpu::packed_bytes(w.weight, cpu::weight_operand(profile)));
      const auto packed = cpu::pack(w.weight, arena.data, one, cpu::nibble_order(kernels.isa),
                                    cpu::weight_operand(profile));
      expect_every_cut(kernels, {&one, &two, &seven}, packed, in, want,
                       std::string(" x ") + activation_format_name(kind) + " N " + std::to_string(s.n) + " K " +
                           std::to_string(s.k) + " joined " + std::to_string(joined_rows));
      if (HasFatalFailure()) return;
    }
  }
}

// No format is left without cases: each kind of activation meets K with and without a tail where it may.
TEST(LinearFusedCases, HoldEveryKindAndTail) {
  for (const Tested& tested : all_tested()) {
    std::set<std::pair<Kind, bool>> seen;
    for (const Case& c : cases_of(tested.format)) seen.insert({c.kind, c.shape.k % 16 == 0});
    // five kinds on whole blocks; with a tail the four that are not NVFP4, unless the weight is
    EXPECT_EQ(seen.size(), tested.format == WeightFormat::nvfp4 ? 5u : 5u + 4u);
  }
}

std::string tested_name(const testing::TestParamInfo<Tested>& tested) {
  constexpr const char* kLayouts[] = {"none", "tensor", "row", "block"};
  return std::string(cpu::profile_name(tested.param.profile)) + "_" +
         weight_format_name(tested.param.format) + "_" + kLayouts[static_cast<int>(tested.param.layout)];
}
INSTANTIATE_TEST_SUITE_P(All, LinearFused, testing::ValuesIn(all_tested()), tested_name);

// What no trained weight holds: NaN, infinities, subnormals, zeros of both signs and the largest values, in
// weights, their scales and inputs.
constexpr std::int64_t kEdgeN = 37, kEdgeK = 160;

struct EdgeWeight {
  Weight weight;
  std::vector<std::byte> codes, block_scales;
  std::mt19937 random{4};

  float value() {
    constexpr float kEdges[] = {0,           -0.0f,        0x1p-133f, -0x1p-127f, 0x1p-126f,
                                0x1.FEp127f, -0x1.FEp127f, INFINITY,  NAN,        65504.0f};
    return random() % 100 == 0 ? kEdges[random() % 10]
                              : 0.5f + static_cast<float>(random() % 1024) / 1024.0f;
  }
  // An e4m3 byte, a weight or the scale of a block: one of `every` an edge.
  std::uint8_t byte(unsigned every) {
    constexpr std::uint8_t kEdges[] = {0x00, 0x80, 0x01, 0x81, 0x07, 0x08, 0x7E, 0xFE, 0x7F, 0xFF};
    return random() % every == 0 ? kEdges[random() % 10] : RandomWeight::code8(random);
  }
  static void put(std::vector<std::byte>& to, auto v) {
    const auto at = to.size();
    to.resize(at + sizeof v);
    std::memcpy(&to[at], &v, sizeof v);
  }
  // Row 3 is zeros, row 4 has no finite value, row 5 subnormals.
  float value_in(std::int64_t row) {
    const float v = value();
    return row == 3 ? 0 : row == 4 ? NAN : row == 5 ? v * 0x1p-130f : v;
  }
  std::uint8_t byte_in(std::int64_t row, unsigned every) {
    const std::uint8_t v = byte(every);
    return static_cast<std::uint8_t>(row == 3 ? v & 0x80 : row == 4 ? v | 0x7F : row == 5 ? v & 0x87 : v);
  }

  EdgeWeight(WeightFormat format, ScaleLayout layout) {
    weight.name = "edges";
    weight.format = format;
    weight.rows = kEdgeN;
    weight.cols = kEdgeK;
    weight.scale_layout = layout;
    const bool nvfp4 = format == WeightFormat::nvfp4;
    for (std::int64_t i = 0; i < kEdgeN * kEdgeK; ++i) {
      const std::int64_t row = i / kEdgeK;
      if (format == WeightFormat::f32) put(codes, value_in(row));
      if (format == WeightFormat::bf16) put(codes, num::float_to_bf16(value_in(row)));
      if (format == WeightFormat::f16) put(codes, num::float_to_f16(value_in(row)));
      if (format == WeightFormat::fp8_e4m3) put(codes, byte_in(row, 100));
      if (nvfp4 && i % 2 == 0) put(codes, static_cast<std::uint8_t>(random()));  // codes have no edges
      if (nvfp4 && i % 16 == 0) put(block_scales, byte_in(row, 20));
    }
    weight.codes = codes;
    weight.block_scales = block_scales;
    // Products that overflow, vanish and become NaN behind a finite sum.
    constexpr float kScales[] = {1.5f, 0x1p-149f, 0x1.8p-130f, 0x1.FEp127f, INFINITY, NAN, 0, -0.75f};
    const std::int64_t scales = layout == ScaleLayout::none ? 0 : layout == ScaleLayout::row ? kEdgeN : 2;
    for (std::int64_t i = 0; i < scales; ++i) weight.scales.push_back(i % 3 == 0 ? kScales[i / 3 % 8] : 0.7f);
  }
  EdgeWeight(const EdgeWeight&) = delete;
  EdgeWeight& operator=(const EdgeWeight&) = delete;
};

class LinearFusedEdges : public testing::TestWithParam<Tested> {};

TEST_P(LinearFusedEdges, EqualsATripleLoop) {
  const auto [profile, format, layout] = GetParam();
  EdgeWeight edges(format, layout);
  const Weight& w = edges.weight;
  // sm120 is tested for its FP4 unit, which wants codes on both sides
  Input in(profile, profile == Profile::sm120 ? Kind::nvfp4_static : Kind::none, kEdgeK, 8);
  if (profile == Profile::sm120) {
    for (std::uint8_t& scale : in.byte_scales) scale = edges.byte(20) & 0x7F;
  } else {
    for (std::size_t i = 0; i < in.x.size(); i += 7) in.x[i] = edges.value();
    for (std::int64_t c = 0; c < kEdgeK; ++c) in.at(6, c) = 0x1.FFFFFEp127f;  // rounds to 2^128
    in.round_rows();
  }
  const std::vector<float> want = expected(w, Operands(profile, w), in);
  int finite = 0, not_finite = 0;
  Parallel one(1);
  for (const Isa isa : cpu::available_isas()) {
    const test::Aligned arena(cpu::packed_bytes(w, cpu::weight_operand(profile)));
    const auto packed =
        cpu::pack(w, arena.data, one, cpu::nibble_order(isa), cpu::weight_operand(profile));
    Guarded y(9, kEdgeN);
    run(isa, one, packed, in, 0, 9, y);
    for (std::int64_t t = 0; t < 9; ++t) {
      for (std::int64_t n = 0; n < kEdgeN; ++n) {
        const float e = want[static_cast<std::size_t>(t * kEdgeN + n)];
        ++(std::isfinite(e) ? finite : not_finite);
        ASSERT_TRUE(test::same_bits(y.at(t, n), e)) << t << " " << n << " " << y.at(t, n) << " " << e;
      }
    }
  }
  // Where most sums were NaN, little would be compared.
  EXPECT_GT(finite, not_finite / 5);
  EXPECT_GT(not_finite, 0);
}

std::vector<Tested> all_edges() {
  using F = WeightFormat;
  using L = ScaleLayout;
  std::vector<Tested> all = {{Profile::sm90, F::bf16, L::none}, {Profile::sm90, F::f32, L::none}};
  for (const F f : {F::bf16, F::f16, F::f32}) all.push_back({Profile::sm70, f, L::none});
  for (const Profile p : {Profile::sm90, Profile::sm70}) {
    all.push_back({p, F::nvfp4, L::row});
    for (const L l : {L::row, L::block128}) all.push_back({p, F::fp8_e4m3, l});
  }
  all.push_back({Profile::sm120, F::nvfp4, L::row});
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, LinearFusedEdges, testing::ValuesIn(all_edges()), tested_name);

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
  cpu::round_f16(cpu::available_isas().front(), two, kRowCount, kCols, {y.data(), kCols}, exponents.data());
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
