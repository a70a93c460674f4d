// Fused sums of matrix units: the scalar model against big-integer golden results, and the fast loops
// of every instruction set against the scalar model.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "core/base/float_env.h"
#include "backends/cpu/kernels/linear_fused.h"
#include "backends/cpu/ops/linear_fused.h"
#include "core/numerics/codecs.h"
#include "core/numerics/fused_dot.h"
#include "core/numerics/fused_fp4.h"
#include "core/numerics/matrix_order.h"
#include "tests/support/buffers.h"
#include "tests/support/golden.h"

namespace nibble {
namespace {

using cpu::Isa;

template <class T>
std::vector<T> words(const test::Golden& g, const std::string& name) {
  const auto bytes = g.u8(name);
  std::vector<T> v(bytes.size() / sizeof(T));
  std::memcpy(v.data(), bytes.data(), bytes.size());
  return v;
}

// Calls check(a, b, c, result) for each sum of a family.
template <class Word = std::uint16_t, class Widen, class Check>
int each_golden(const char* family, std::size_t k, Widen widen, Check check) {
  const test::Golden g(NIBBLE_TEST_DATA "/fused/fused.safetensors");
  const std::string name = family;
  const auto a = words<Word>(g, name + ".a"), b = words<Word>(g, name + ".b");
  const auto c = words<std::uint32_t>(g, name + ".c"), want = words<std::uint32_t>(g, name + ".result");
  std::vector<float> x(k), y(k);
  for (std::size_t n = 0; n < want.size(); ++n) {
    const std::size_t block = n / 256, i = n / 16 % 16, j = n % 16;
    for (std::size_t t = 0; t < k; ++t) {
      x[t] = widen(a[(block * 16 + i) * k + t]);
      y[t] = widen(b[(block * 16 + j) * k + t]);
    }
    check(x, y, num::bit_cast<float>(c[block * 16 + (i + j) % 16]), num::bit_cast<float>(want[n]));
  }
  return static_cast<int>(want.size());
}

template <int K, int F, int MinExponent, int Bits = 24, class Word = std::uint16_t, class Widen>
int model_equals_golden(const char* family, Widen widen) {
  int n = 0;
  return each_golden<Word>(family, K, widen, [&](const auto& x, const auto& y, float c, float want) {
    const float got = num::fused_dot<K, F, Bits, MinExponent>(x.data(), y.data(), c);
    ASSERT_TRUE(test::same_bits(got, want))
        << family << " " << n << ": " << std::hexfloat << got << ", expected " << want;
    ++n;
  });
}

float from_bf16(std::uint16_t h) { return num::bf16_to_float(h); }
float from_f16(std::uint16_t h) { return num::f16_to_float(h); }

TEST(FusedDot, EqualsBigIntegers) {
  const FloatEnv env;
  int n = model_equals_golden<16, 25, num::kBf16MinExponent>("bf16_16_25", from_bf16);
  n += model_equals_golden<16, 25, num::kF16MinExponent>("f16_16_25", from_f16);
  n += model_equals_golden<4, 23, num::kF16MinExponent>("f16_4_23", from_f16);
  EXPECT_GE(n, 10000);
  EXPECT_GE((model_equals_golden<32, 13, num::kE4m3MinExponent, 14, std::uint8_t>(
                "e4m3_32_13", [](std::uint8_t b) { return num::e4m3_to_float(b); })),
            10000);
}

struct Fp4Golden {
  test::Golden file{NIBBLE_TEST_DATA "/fused/fused.safetensors"};
  std::vector<std::uint8_t> a = file.u8("mxf4nvf4_64_35.a"), b = file.u8("mxf4nvf4_64_35.b"),
                            a_scales = file.u8("mxf4nvf4_64_35.a_scales"),
                            b_scales = file.u8("mxf4nvf4_64_35.b_scales");
  std::vector<std::uint32_t> c = words<std::uint32_t>(file, "mxf4nvf4_64_35.c"),
                             result = words<std::uint32_t>(file, "mxf4nvf4_64_35.result");
  std::size_t blocks() const { return result.size() / 256; }
};

TEST(FusedFp4, EqualsBigIntegers) {
  const Fp4Golden g;
  EXPECT_GE(g.result.size(), 10000u);
  for (std::size_t n = 0; n < g.result.size(); ++n) {
    const std::size_t i = n / 256 * 16 + n / 16 % 16, j = n / 256 * 16 + n % 16;
    std::uint32_t a[8], b[8], scales[2];
    std::memcpy(a, &g.a[i * 32], 32);
    std::memcpy(b, &g.b[j * 32], 32);
    std::memcpy(&scales[0], &g.a_scales[i * 4], 4);
    std::memcpy(&scales[1], &g.b_scales[j * 4], 4);
    const float c = num::bit_cast<float>(g.c[n / 256 * 16 + (n / 16 + n) % 16]);
    const float got = num::fused_fp4(a, b, scales[0], scales[1], c);
    const float want = num::bit_cast<float>(g.result[n]);
    ASSERT_TRUE(test::same_bits(got, want)) << n << ": " << std::hexfloat << got << ", expected " << want;
    if (want != want) {
      ASSERT_EQ(num::bit_cast<std::uint32_t>(got), 0x7FFFFFFFu);
    }
  }
}

// Sixteen columns at once: the b vectors of a block as the rows of a packed weight.
TEST(FusedFp4, FastLoopsEqualBigIntegers) {
  const FloatEnv env;
  const Fp4Golden g;
  cpu::Parallel one(1);
  for (const Isa isa : cpu::available_isas()) {
    const cpu::FusedKernels& kernels = cpu::fused_kernels(isa);
    for (std::size_t block = 0; block < g.blocks(); ++block) {
      Weight w;
      w.name = "golden";
      w.format = WeightFormat::nvfp4;
      w.rows = 16;
      w.cols = 64;
      w.scale_layout = ScaleLayout::tensor;
      w.scales = {1.0f};
      w.codes = std::as_bytes(std::span(&g.b[block * 512], 512));
      w.block_scales = std::as_bytes(std::span(&g.b_scales[block * 64], 64));
      const test::Aligned arena(cpu::packed_bytes(w));
      const cpu::PackedWeight packed = cpu::pack(w, arena.data, one, cpu::nibble_order(isa));
      for (std::size_t i = 0; i < 16; ++i) {
        std::int16_t codes[64];
        double scales[4];
        std::int32_t exponents[4];
        kernels.operand_fp4(&g.a[(block * 16 + i) * 32], &g.a_scales[(block * 16 + i) * 4], 64, codes,
                            scales, exponents);
        float c[16];
        for (std::size_t j = 0; j < 16; ++j) c[j] = num::bit_cast<float>(g.c[block * 16 + (i + j) % 16]);
        kernels.group_fp4(packed, codes, scales, exponents, c);
        for (std::size_t j = 0; j < 16; ++j) {
          const float want = num::bit_cast<float>(g.result[block * 256 + i * 16 + j]);
          ASSERT_TRUE(test::same_bits(c[j], want))
              << cpu::isa_name(isa) << " block " << block << " [" << i << ", " << j << "] "
              << std::hexfloat << c[j] << ", expected " << want;
        }
      }
    }
  }
}

TEST(FusedFp4, Corners) {
  const std::uint32_t none[8] = {}, ones[8] = {0x22222222u, 0x22222222u, 0x22222222u, 0x22222222u,
                                               0x22222222u, 0x22222222u, 0x22222222u, 0x22222222u};
  const auto zeros = [&](std::uint32_t sa, std::uint32_t sb, float c) {
    return num::fused_fp4(none, ones, sa, sb, c);
  };
  constexpr std::uint32_t kUnit = 0x38383838u, kLeast = 0x01010101u;
  EXPECT_TRUE(test::same_bits(num::fused_fp4(ones, ones, kUnit, kUnit, 0.5f), 64.5f));
  EXPECT_TRUE(test::same_bits(num::fused_fp4(ones, ones, 0xB8B8B8B8u, kUnit, 0.5f), 64.5f));  // no sign
  EXPECT_TRUE(test::same_bits(zeros(kUnit, kUnit, -0.0f), 0.0f));
  // A block whose codes are zero aligns by its scales: 2^-35 below 1 stays, 2^-36 does not.
  EXPECT_TRUE(test::same_bits(zeros(kUnit, kUnit, -0x1p-35f), -0x1p-35f));
  EXPECT_TRUE(test::same_bits(zeros(kUnit, kUnit, -0x1p-36f), 0.0f));
  EXPECT_TRUE(test::same_bits(zeros(kLeast, kLeast, 0x1p-47f), 0x1p-47f));  // e = -6 - 6
  EXPECT_TRUE(test::same_bits(zeros(kLeast, kLeast, 0x1p-48f), 0.0f));
  // One whose scale is zero does not.
  EXPECT_TRUE(test::same_bits(zeros(0, kUnit, -0x1p-149f), -0x1p-149f));
  EXPECT_TRUE(test::same_bits(num::fused_fp4(ones, ones, 0, 0x7E7E7E7Eu, 0x1p-100f), 0x1p-100f));
  EXPECT_TRUE(std::isnan(zeros(0x7F, 0, 1.0f)));
  EXPECT_TRUE(std::isnan(zeros(0, 0xFF000000u, INFINITY)));
  EXPECT_TRUE(test::same_bits(num::fused_fp4(ones, ones, kUnit, kUnit, -INFINITY), -INFINITY));
}

// The golden sums again, each in another column of a panel whose other columns hold zeros.
TEST(FusedDot, FastLoopsEqualBigIntegers) {
  const FloatEnv env;
  for (const Isa isa : cpu::available_isas()) {
    int n = 0;
    const auto with = [&](auto chain) {
      return [&n, isa, chain](const auto& x, const auto& y, float c, float want) {
        std::vector<float> panel(y.size() * 16, 0.0f), sums(16, 0.0f);
        const auto lane = static_cast<std::size_t>(n++ % 16);
        for (std::size_t t = 0; t < y.size(); ++t) panel[t * 16 + lane] = y[t];
        sums[lane] = c;
        chain(x.data(), panel.data(), static_cast<std::int64_t>(x.size()), sums.data());
        ASSERT_TRUE(test::same_bits(sums[lane], want))
            << cpu::isa_name(isa) << " " << n << ": " << std::hexfloat << sums[lane] << ", expected "
            << want;
      };
    };
    each_golden("bf16_16_25", 16, from_bf16, with(cpu::fused_kernels(isa).chain_sm90));
    each_golden("f16_4_23", 4, from_f16, with(cpu::fused_kernels(isa).chain_sm70));
    each_golden<std::uint8_t>("e4m3_32_13", 32, [](std::uint8_t b) { return num::e4m3_to_float(b); },
                              with(cpu::fused_kernels(isa).chain_sm90_fp8));
  }
}

// Subnormals, results and operands of the other formats.
TEST(FusedDot, Corners) {
  const float zero = 0.0f, one = 1.0f, inf = num::bit_cast<float>(0x7F800000u);
  const auto dot = [](float a, float b, float c) { return num::fused_dot<1, 25>(&a, &b, c); };
  EXPECT_TRUE(test::same_bits(dot(-zero, one, -zero), zero));
  EXPECT_TRUE(test::same_bits(dot(one, -one, one), zero));
  EXPECT_TRUE(test::same_bits(dot(0x1p-80f, 0x1p-60f, 0), 0x1p-140f));
  EXPECT_TRUE(test::same_bits(dot(0x1p-80f, 0x1p-70f, 0), zero));
  EXPECT_TRUE(test::same_bits(dot(0x1p100f, 0x1p28f, 0), inf));
  EXPECT_TRUE(test::same_bits(dot(0x1p100f, -0x1p28f, 0), -inf));
  EXPECT_TRUE(std::isnan(dot(zero, inf, one)));
  EXPECT_TRUE(std::isnan(dot(one, inf, -inf)));
  EXPECT_EQ(num::bit_cast<std::uint32_t>(dot(zero, inf, one)), 0x7FFFFFFFu);
  // truncated, not rounded: the product's last bit lies one below F
  EXPECT_TRUE(test::same_bits(dot(0x1p-13f, 0x1p-13f, 1.0f), one));
  // the FP8 unit: 13 fraction bits in the sum, 14 significant ones in the result
  const float a[2] = {3.0f, 3.0f}, b[2] = {1.0f, 1.0f};
  const auto fp8 = [&](float c) { return num::fused_dot<2, 13, 14, num::kE4m3MinExponent>(a, b, c); };
  EXPECT_TRUE(test::same_bits(fp8(0x1p-10f), 6.0f + 0x1p-10f));
  EXPECT_TRUE(test::same_bits(fp8(0x1p-12f), 6.0f));  // in the sum, not in the result
  EXPECT_TRUE(test::same_bits(fp8(0x1p-13f), 6.0f));  // not in the sum
  // products past 2^128 that cancel are finite
  const float big[2] = {0x1p100f, -0x1p100f}, also[2] = {0x1p100f, 0x1p100f};
  EXPECT_TRUE(test::same_bits((num::fused_dot<2, 25>(big, also, 1.0f)), zero));
}

// `binades`: the spread of exponents; `special`: one operand in so many is an edge value.
template <class Round, class Chain, class Model>
void chains_equal_model(int k, int group, int binades, int special, const float* edges, int edge_count,
                        Round round, Chain chain, Model model) {
  std::mt19937 random(static_cast<unsigned>(binades * 1000 + special));
  const auto draw = [&] {
    if (special > 0 && random() % static_cast<unsigned>(special) == 0) {
      return edges[random() % static_cast<unsigned>(edge_count)];
    }
    const float v = 1.0f + static_cast<float>(random() % 1024) / 1024.0f;
    const int e = static_cast<int>(random() % static_cast<unsigned>(binades)) - binades / 2;
    return round(std::ldexp(random() % 2 == 0 ? v : -v, e));
  };
  std::vector<float> a(static_cast<std::size_t>(k)), b(static_cast<std::size_t>(k * 16));
  for (int round_number = 0; round_number < 60; ++round_number) {
    for (float& v : a) v = draw();
    for (float& v : b) v = draw();
    float start[16], want[16];
    for (int j = 0; j < 16; ++j) start[j] = want[j] = round_number % 2 == 0 ? 0.0f : draw() * draw();
    for (int k0 = 0; k0 < k; k0 += group) {
      for (int j = 0; j < 16; ++j) want[j] = model(&a[static_cast<std::size_t>(k0)],
                                                   &b[static_cast<std::size_t>(k0 * 16 + j)], want[j]);
    }
    for (const Isa isa : cpu::available_isas()) {
      float got[16];
      std::copy_n(start, 16, got);
      chain(cpu::fused_kernels(isa))(a.data(), b.data(), k, got);
      for (int j = 0; j < 16; ++j) {
        ASSERT_TRUE(test::same_bits(got[j], want[j]))
            << cpu::isa_name(isa) << " binades " << binades << " special " << special << " column " << j
            << ": " << std::hexfloat << got[j] << ", expected " << want[j];
      }
    }
  }
}

constexpr int kSpread[] = {1, 2, 8, 24, 60, 120, 250};

TEST(FusedDot, FastLoopsEqualTheModelBf16) {
  const FloatEnv env;
  const float edges[] = {0.0f,      -0.0f,     0x1p-126f,     0x1p-133f, -0x1.8p-128f, 0x1.FEp127f,
                         -0x1.FEp127f, 0x1.FEp0f, -0x1.FEp0f, INFINITY,  -INFINITY,    NAN};
  for (const int binades : kSpread) {
    for (const int special : {0, 2, 10, 200}) {
      for (const int edge_count : {2, 9, 12}) {
        chains_equal_model(
            128, 16, binades, special, edges, edge_count,
            [](float v) { return num::bf16_to_float(num::float_to_bf16(v)); },
            [](const cpu::FusedKernels& t) { return t.chain_sm90; },
            [](const float* a, const float* b, float c) {
              return num::fused_dot<16, 25, 24, num::kBf16MinExponent, 16>(a, b, c);
            });
      }
    }
  }
}

TEST(FusedDot, FastLoopsEqualTheModelF16) {
  const FloatEnv env;
  const float edges[] = {0.0f, -0.0f, 0x1p-14f, 0x1p-24f, -0x1.8p-18f, 65504.0f, INFINITY, NAN};
  for (const int binades : {1, 2, 8, 24, 40}) {
    for (const int special : {0, 2, 10, 200}) {
      chains_equal_model(
          128, 4, binades, special, edges, binades % 3 == 2 ? 8 : 6,
          [](float v) { return num::f16_to_float(num::float_to_f16(v)); },
          [](const cpu::FusedKernels& t) { return t.chain_sm70; },
          [](const float* a, const float* b, float c) {
            return num::fused_dot<4, 23, 24, num::kF16MinExponent, 16>(a, b, c);
          });
    }
  }
}

// All magnitudes of the format, its subnormals among them; NaN beside them.
TEST(FusedDot, FastLoopsEqualTheModelE4m3) {
  const FloatEnv env;
  const float edges[] = {0.0f, -0.0f, 0x1p-9f, -0x1.8p-8f, 0x1p-6f, 448.0f, -448.0f, NAN};
  for (const int binades : {1, 2, 8, 17, 30}) {
    for (const int special : {0, 2, 10, 200}) {
      for (const int edge_count : {2, 7, 8}) {
        chains_equal_model(
            128, 32, binades, special, edges, edge_count,
            [](float v) { return num::e4m3_to_float(num::float_to_e4m3(v)); },
            [](const cpu::FusedKernels& t) { return t.chain_sm90_fp8; },
            [](const float* a, const float* b, float c) {
              return num::fused_dot<32, 13, 14, num::kE4m3MinExponent, 16>(a, b, c);
            });
      }
    }
  }
}

// The fast loops bound the accumulator and the products before they start: values about those bounds, and
// columns whose products are all zero.
TEST(FusedDot, StartsAboutTheBounds) {
  const FloatEnv env;
  const float starts[] = {0.0f,       -0.0f,     0x1p-149f, -0x1.8p-127f, 0x1.000002p-126f, -0x1.FFFFFEp-103f,
                          0x1p-102f,  0x1p-101f, 0x1.FFFFFEp-101f, -0x1p-100f, 0x1.FFFFFEp99f, 0x1p100f,
                          -0x1p101f,  0x1p126f,  0x1.FFFFFEp127f,  INFINITY,   -INFINITY,      NAN};
  const float bf16[] = {0.0f,      -0.0f,    0x1p-133f, 0x1.02p-126f, -0x1.FEp-65f, 0x1p-51f, 0x1p-50f, 1.0f,
                        -0x1.FEp0f, 0x1.FEp49f, 0x1p50f, 0x1p64f,     -0x1p67f,     0x1p127f};
  const float e4m3[] = {0.0f, -0.0f, 0x1p-9f, -0x1.8p-8f, 0x1p-6f, 1.0f, -1.875f, 448.0f};
  const float f16[] = {0.0f, -0.0f, 0x1p-24f, -0x1.8p-15f, 0x1p-14f, 1.0f, -0x1.FFCp0f, 65504.0f};
  const auto check = [&](int k, std::span<const float> values, auto chain, auto model) {
    for (std::size_t first = 0; first < values.size(); ++first) {
      for (const float c : starts) {
        // Column 0: all products zero; the others: one, two or three of them not.
        std::vector<float> a(static_cast<std::size_t>(k), values[first]), b(static_cast<std::size_t>(k) * 16);
        for (std::size_t j = 1; j < 16; ++j) {
          b[j] = values[j % values.size()];
          if (j % 3 == 0) b[16 + j] = -b[j];
          if (j % 5 == 0) b[32 + j] = values[(j + first) % values.size()];
        }
        for (const Isa isa : cpu::available_isas()) {
          std::vector<float> got(16, c);
          chain(cpu::fused_kernels(isa))(a.data(), b.data(), k, got.data());
          for (std::size_t j = 0; j < 16; ++j) {
            const float want = model(a.data(), &b[j], c);
            ASSERT_TRUE(test::same_bits(got[j], want))
                << cpu::isa_name(isa) << " k " << k << " column " << j << std::hexfloat << ", a " << a[0]
                << ", c " << c << ": " << got[j] << ", expected " << want;
          }
        }
      }
    }
  };
  check(
      16, bf16, [](const cpu::FusedKernels& t) { return t.chain_sm90; },
      [](const float* a, const float* b, float c) {
        return num::fused_dot<16, 25, 24, num::kBf16MinExponent, 16>(a, b, c);
      });
  check(
      4, f16, [](const cpu::FusedKernels& t) { return t.chain_sm70; },
      [](const float* a, const float* b, float c) {
        return num::fused_dot<4, 23, 24, num::kF16MinExponent, 16>(a, b, c);
      });
  check(
      32, e4m3, [](const cpu::FusedKernels& t) { return t.chain_sm90_fp8; },
      [](const float* a, const float* b, float c) {
        return num::fused_dot<32, 13, 14, num::kE4m3MinExponent, 16>(a, b, c);
      });
}

// Sixteen of the largest products of one sign beside a large accumulator: S passes 2^31.
TEST(FusedDot, SumsPastThirtyOneBits) {
  const FloatEnv env;
  for (const float sign : {1.0f, -1.0f}) {
    for (const float c : {0.0f, 0x1.FFFFFEp0f, -0x1.FFFFFEp0f, 0x1.FFFFFEp1f, 1.0f}) {
      std::vector<float> a(16, 0x1.FEp0f), b(256, sign * 0x1.FEp0f);
      for (int down = 0; down < 16; ++down) {
        for (std::size_t j = 0; j < 16; ++j) b[static_cast<std::size_t>(down) * 16 + j] *= j < 8 ? 1 : 0.5f;
        for (const Isa isa : cpu::available_isas()) {
          std::vector<float> got(16, sign * c);
          cpu::fused_kernels(isa).chain_sm90(a.data(), b.data(), 16, got.data());
          for (std::size_t j = 0; j < 16; ++j) {
            ASSERT_TRUE(test::same_bits(
                got[j], (num::fused_dot<16, 25, 24, num::kBf16MinExponent, 16>(a.data(), &b[j], sign * c))));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace nibble
