// Linear of profile sm90 against a plain triple loop over the scalar model: formats x activations x
// shapes x rows x instruction sets x threads.
#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>

#include <algorithm>

#include "backends/cpu/ops/linear_fused.h"
#include "backends/cpu/ops/quantize.h"
#include "core/numerics/fused_dot.h"
#include "tests/cpu/linear_reference.h"
#include "tests/support/buffers.h"

namespace nibble {
namespace {

using cpu::Isa;
using cpu::Parallel;
using test::Guarded;
using Kind = ActivationFormat::Kind;

// Seven threads also where the machine has fewer processors.
const oneapi::tbb::global_control kThreads(oneapi::tbb::global_control::max_allowed_parallelism, 8);

constexpr std::int64_t kMost = 65;
constexpr std::int64_t kRows[] = {1, 2, 3, 5, 17, 64, 65};

float to_bf16(float v) { return num::bf16_to_float(num::float_to_bf16(v)); }

// One output, as docs/numerics.md says it. `x`: the operand row; `group`: scales of 128 columns or null.
float reference(const Weight& w, const std::vector<float>& ops, std::int64_t n, const float* x,
                const float* group, float post) {
  const bool blocks = group != nullptr || w.scale_layout == ScaleLayout::block128;
  const num::Segments segments = num::linear_segments(w.rows, w.cols, blocks);
  float total = 0;
  for (std::int64_t s = 0; s < segments.count; ++s) {
    const std::int64_t from = s * segments.length, to = std::min(from + segments.length, w.cols);
    float sum = 0;
    for (std::int64_t k0 = from; k0 < to; k0 += 16) {
      float a[16] = {}, b[16] = {};
      for (std::int64_t k = k0; k < std::min(k0 + 16, to); ++k) {
        a[k - k0] = x[k];
        b[k - k0] = ops[static_cast<std::size_t>(n * w.cols + k)];
      }
      sum = num::fused_dot<16, 25>(a, b, sum);
    }
    if (group != nullptr) sum = sum * group[s];
    total = w.scale_layout == ScaleLayout::block128
                ? std::fma(sum, test::block_scale(w, n, s * 128), total)
                : total + sum;
  }
  return total * test::alpha(w, n) * post;
}

struct Input {  // kMost rows, quantised or not, and their operands
  ActivationFormat format;
  std::int64_t cols;
  std::vector<float> x, operand, float_scales;
  std::vector<std::uint8_t> codes, byte_scales;

  Input(Kind kind, std::int64_t k, unsigned seed) : cols(k) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    x.resize(static_cast<std::size_t>(kMost * k));
    for (float& v : x) v = to_bf16(normal(random));
    format.kind = kind;
    if (kind == Kind::nvfp4_static) format.scale = 0.004f;
    if (kind == Kind::fp8_tensor_static) format.scale = 0.01f;
    operand = x;
    if (kind == Kind::none) return;
    codes.resize(static_cast<std::size_t>(kMost * code_cols()));
    byte_scales.resize(static_cast<std::size_t>(kMost * scale_cols()));
    float_scales.resize(byte_scales.size());
    Parallel one(1);
    cpu::quantize(Isa::portable, one,
                  {kMost, k, format, x.data(), k, codes.data(), code_cols(), scales(0), scale_cols()});
    for (std::int64_t t = 0; t < kMost; ++t) {
      for (std::int64_t c = 0; c < k; ++c) operand[static_cast<std::size_t>(t * k + c)] = decoded(t, c);
    }
  }
  std::int64_t code_cols() const { return format.kind == Kind::nvfp4_static ? cols / 2 : cols; }
  std::int64_t scale_cols() const {
    switch (format.kind) {
      case Kind::nvfp4_static:
        return cols / 16;
      case Kind::fp8_token:
        return 1;
      case Kind::fp8_token_group128:
        return (cols + 127) / 128;
      default:
        return 0;
    }
  }
  void* scales(std::int64_t row) {
    if (format.kind == Kind::nvfp4_static) return byte_scales.data() + row * scale_cols();
    return float_scales.data() + row * scale_cols();
  }
  float decoded(std::int64_t t, std::int64_t c) const {
    if (format.kind != Kind::nvfp4_static) {
      return num::e4m3_to_float(codes[static_cast<std::size_t>(t * cols + c)]);
    }
    const auto two = codes[static_cast<std::size_t>(t * code_cols() + c / 2)];
    return num::e2m1_to_float(static_cast<std::uint8_t>(c % 2 == 0 ? two & 15 : two >> 4)) *
           num::e4m3_to_float(byte_scales[static_cast<std::size_t>(t * scale_cols() + c / 16)]);
  }
  const float* group(std::int64_t t) const {
    return format.kind == Kind::fp8_token_group128 ? float_scales.data() + t * scale_cols() : nullptr;
  }
  float post(std::int64_t t) const {
    if (format.kind == Kind::fp8_token) return float_scales[static_cast<std::size_t>(t)];
    return format.kind == Kind::nvfp4_static || format.kind == Kind::fp8_tensor_static ? format.scale
                                                                                       : 1.0f;
  }
};

void run(Isa isa, Parallel& parallel, const cpu::PackedWeight& w, Input& in, std::int64_t first,
         std::int64_t rows, Guarded& y) {
  const test::Aligned workspace(
      static_cast<std::uint64_t>(cpu::linear_fused_workspace_bytes(rows, in.cols)));
  cpu::LinearArgs a;
  a.weight = &w;
  a.rows = rows;
  a.format = in.format;
  if (in.format.kind == Kind::none) {
    a.x = in.x.data() + first * in.cols;
    a.x_stride = in.cols;
  } else {
    a.codes = in.codes.data() + first * in.code_cols();
    a.x_stride = in.code_cols();
    a.scales = in.scales(first);
    a.scale_stride = in.scale_cols();
  }
  a.y = y.data();
  a.y_stride = y.stride();
  a.workspace = workspace.data;
  cpu::linear_fused(isa, parallel, a);
}

struct Format {
  WeightFormat format;
  ScaleLayout layout;
};
constexpr Format kFormats[] = {
    {WeightFormat::f32, ScaleLayout::none},     {WeightFormat::f16, ScaleLayout::none},
    {WeightFormat::bf16, ScaleLayout::none},    {WeightFormat::fp8_e4m3, ScaleLayout::tensor},
    {WeightFormat::fp8_e4m3, ScaleLayout::row}, {WeightFormat::fp8_e4m3, ScaleLayout::block128},
    {WeightFormat::nvfp4, ScaleLayout::tensor}, {WeightFormat::nvfp4, ScaleLayout::row},
};
struct Shape {
  std::int64_t n, k;
};
// Tails of panels, groups and segments; two and three segments; blocks of 128.
constexpr Shape kShapes[] = {{1, 16}, {33, 272}, {7, 1}, {17, 131}, {131, 400}, {5, 2208}, {19, 3333}};

class LinearFused : public testing::TestWithParam<Format> {};

TEST_P(LinearFused, EqualsATripleLoop) {
  Parallel one(1), two(2), seven(7);
  int compared = 0;
  for (const Shape& s : kShapes) {
    if (GetParam().format == WeightFormat::nvfp4 && s.k % 16 != 0) continue;
    const test::RandomWeight w(GetParam().format, GetParam().layout, s.n, s.k, 11);
    std::vector<float> ops = test::operands(w.weight);
    for (float& v : ops) v = to_bf16(v);
    for (const Kind kind : {Kind::none, Kind::nvfp4_static, Kind::fp8_tensor_static, Kind::fp8_token,
                            Kind::fp8_token_group128}) {
      if (kind == Kind::nvfp4_static && s.k % 16 != 0) continue;
      Input in(kind, s.k, 5);
      std::vector<float> want;
      for (std::int64_t t = 0; t < kMost; ++t) {
        for (std::int64_t n = 0; n < s.n; ++n) {
          want.push_back(reference(w.weight, ops, n, in.operand.data() + t * s.k, in.group(t), in.post(t)));
        }
      }
      for (const Isa isa : cpu::available_isas()) {
        const test::Aligned arena(cpu::packed_bytes(w.weight));
        const auto packed = cpu::pack(w.weight, arena.data, one, cpu::nibble_order(isa));
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

std::string format_name(const testing::TestParamInfo<Format>& tested) {
  constexpr const char* kLayouts[] = {"none", "tensor", "row", "block"};
  return std::string(weight_format_name(tested.param.format)) + "_" +
         kLayouts[static_cast<int>(tested.param.layout)];
}
INSTANTIATE_TEST_SUITE_P(All, LinearFused, testing::ValuesIn(kFormats), format_name);

// What no trained weight holds: NaN, infinities, subnormals and the largest values on both sides.
TEST(LinearFused, EdgeValues) {
  constexpr std::int64_t kN = 37, kK = 160;
  std::mt19937 random(4);
  Weight w;
  w.name = "edges";
  w.format = WeightFormat::bf16;
  w.rows = kN;
  w.cols = kK;
  std::vector<std::byte> bytes;
  const auto edge = [&]() -> std::uint16_t {
    constexpr std::uint16_t kEdges[] = {0, 0x8000, 1, 0x8040, 0x0080, 0x7F7F, 0xFF7F, 0x7F80, 0xFFFF};
    return random() % 40 == 0 ? kEdges[random() % 9] : static_cast<std::uint16_t>(0x3F00 + random() % 256);
  };
  for (std::int64_t i = 0; i < kN * kK; ++i) {
    const std::uint16_t h = edge();
    bytes.push_back(static_cast<std::byte>(h & 255));
    bytes.push_back(static_cast<std::byte>(h >> 8));
  }
  w.codes = bytes;
  Input in(Kind::none, kK, 8);
  for (std::size_t i = 0; i < in.x.size(); i += 7) in.x[i] = num::bf16_to_float(edge());
  const auto ops = test::operands(w);
  Parallel one(1);
  for (const Isa isa : cpu::available_isas()) {
    const test::Aligned arena(cpu::packed_bytes(w));
    const auto packed = cpu::pack(w, arena.data, one, cpu::nibble_order(isa));
    Guarded y(5, kN);
    run(isa, one, packed, in, 0, 5, y);
    for (std::int64_t t = 0; t < 5; ++t) {
      for (std::int64_t n = 0; n < kN; ++n) {
        const float e = reference(w, ops, n, in.x.data() + t * kK, nullptr, 1.0f);
        ASSERT_TRUE(test::same_bits(y.at(t, n), e)) << t << " " << n << " " << y.at(t, n) << " " << e;
      }
    }
  }
}

}  // namespace
}  // namespace nibble
