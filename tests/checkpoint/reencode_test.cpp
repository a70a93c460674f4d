// NVFP4 matrices as FP8: each code against the formula in double, the scale's exponent, the loss.
#include "core/checkpoint/reencode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/numerics/fp8_reencode.h"
#include "core/parity/weight_rows.h"
#include "nibble/error.h"

namespace nibble {
namespace {

struct Matrix {
  Weight weight;
  std::vector<std::byte> codes, block_scales;

  // Block scales of bytes [least, most].
  Matrix(std::int64_t rows, std::int64_t cols, int least, int most, ScaleLayout layout) {
    std::mt19937 random(5);
    weight.name = "w";
    weight.format = WeightFormat::nvfp4;
    weight.rows = rows;
    weight.cols = cols;
    weight.scale_layout = layout;
    for (std::int64_t i = 0; i < rows * cols / 2; ++i) codes.push_back(static_cast<std::byte>(random()));
    const auto several = static_cast<unsigned>(most - least + 1);
    for (std::int64_t i = 0; i < rows * cols / 16; ++i) {
      block_scales.push_back(static_cast<std::byte>(least + static_cast<int>(random() % several)));
    }
    weight.codes = codes;
    weight.block_scales = block_scales;
    const std::int64_t scales = layout == ScaleLayout::row ? rows : 1;
    for (std::int64_t i = 0; i < scales; ++i) weight.scales.push_back(0.01f * static_cast<float>(i + 1));
  }
  Matrix(const Matrix&) = delete;
};

std::vector<double> values(const Weight& w) {
  std::vector<double> out(static_cast<std::size_t>(w.rows * w.cols));
  for (std::int64_t n = 0; n < w.rows; ++n) weight_row(w, n, out.data() + n * w.cols);
  return out;
}

Weight made(const Weight& nvfp4) {
  Weight w = reencoded_to_fp8(nvfp4);
  EXPECT_TRUE(w.codes.empty());
  EXPECT_EQ(w.bytes(), static_cast<std::uint64_t>(w.rows * w.cols) + 4 * w.scales.size());
  w.materialize(w);
  return w;
}

// The nearest of all finite e4m3 values, the even code of two.
std::uint8_t nearest(double v) {
  int best = 0;
  for (int code = 0; code < 0x7F; ++code) {
    const double d = std::abs(num::e4m3_to_float(static_cast<std::uint8_t>(code)) - std::abs(v)),
                 least = std::abs(num::e4m3_to_float(static_cast<std::uint8_t>(best)) - std::abs(v));
    if (d < least || (d == least && code % 2 == 0)) best = code;
  }
  return static_cast<std::uint8_t>(best);
}

// All pairs of a block scale and a code, under every exponent that a matrix can have: the float32 division before
// the rounding never changes its result.
TEST(Reencode, CodesAreTheNearestOfTheQuotient) {
  for (int k = -22; k <= 0; ++k) {
    const float scale = num::fp8_scale(k);
    EXPECT_EQ(scale, std::ldexp(6.0, k));
    for (int s = 0; s < 0x7F; ++s) {
      for (int c = 0; c < 16; ++c) {
        const auto code = static_cast<std::uint8_t>(c), block = static_cast<std::uint8_t>(s);
        const double v = static_cast<double>(num::e2m1_to_float(code)) * num::e4m3_to_float(block);
        if (std::abs(v) > 448.0 * scale) continue;  // such a matrix has a larger k
        const std::uint8_t got = num::nvfp4_to_e4m3(code, block, scale);
        ASSERT_EQ(got & 0x7F, nearest(v / scale)) << "k " << k << " scale " << s << " code " << c;
        ASSERT_EQ(got >> 7, std::signbit(v)) << "k " << k << " scale " << s << " code " << c;
      }
    }
  }
}

TEST(Reencode, ExponentIsTheLeastThatHoldsTheLargestValue) {
  EXPECT_EQ(num::fp8_scale_exponent(0.0f), 0);
  EXPECT_EQ(num::fp8_scale_exponent(2688.0f), 0);
  for (int s = 1; s < 0x7F; ++s) {
    for (int c = 1; c < 8; ++c) {
      const float amax = num::nvfp4_operand(static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(s));
      const int k = num::fp8_scale_exponent(amax);
      ASSERT_LE(amax, 448.0 * std::ldexp(6.0, k)) << s << " " << c;
      ASSERT_GT(amax, 448.0 * std::ldexp(6.0, k - 1)) << s << " " << c;
    }
  }
}

// Sixes, threes and one-and-a-halves of blocks whose scale keeps three fraction bits are exact.
TEST(Reencode, BlockMaximaAreExact) {
  const float scale = num::fp8_scale(0);
  for (int s = 0x18; s < 0x7F; ++s) {
    for (const std::uint8_t c : {3, 5, 7, 11, 13, 15}) {
      const auto block = static_cast<std::uint8_t>(s);
      EXPECT_EQ(num::e4m3_to_float(num::nvfp4_to_e4m3(c, block, scale)) * scale, num::nvfp4_operand(c, block));
    }
  }
}

TEST(Reencode, MatricesLoseWhatIsMeasured) {
  struct Case {
    std::int64_t rows, cols;
    int least, most, exponent;
    ScaleLayout layout;
  };
  const Case cases[] = {{7, 48, 0x30, 0x7E, 0, ScaleLayout::tensor}, {130, 64, 0x08, 0x40, -7, ScaleLayout::row},
                        {3, 16, 0x00, 0x00, 0, ScaleLayout::tensor}, {2100, 2048, 0x30, 0x3C, -8, ScaleLayout::tensor}};
  for (const Case& c : cases) {
    const Matrix m(c.rows, c.cols, c.least, c.most, c.layout);
    const Weight w = made(m.weight);
    ASSERT_EQ(w.format, WeightFormat::fp8_e4m3);
    ASSERT_EQ(w.scale_layout, c.layout);
    const ReencodeLoss loss = reencode_loss(m.weight);
    const auto before = values(m.weight), after = values(w);
    double error2 = 0, size2 = 0;
    std::int64_t changed = 0;
    for (std::size_t i = 0; i < before.size(); ++i) {
      const double off = after[i] - before[i];
      error2 += off * off;
      size2 += before[i] * before[i];
      changed += std::abs(off) > 1e-6 * std::abs(before[i]);  // alpha is rounded
    }
    EXPECT_EQ(loss.exponent, c.exponent) << c.rows;
    EXPECT_EQ(loss.inexact, changed) << c.rows;
    EXPECT_NEAR(loss.size2, size2, 1e-9 * size2);
    EXPECT_NEAR(loss.error2, error2, 1e-5 * error2 + 1e-30);
    if (size2 > 0) {
      std::printf("%lld x %lld: %.3f %% relative L2\n", static_cast<long long>(c.rows), static_cast<long long>(c.cols),
                  100 * loss.relative_l2());
      EXPECT_LT(loss.relative_l2(), 0.03);
    }
    EXPECT_EQ(w.scales.back(), num::mul(m.weight.scales.back(), num::fp8_scale(c.exponent)));
  }
}

TEST(Reencode, InventedMatricesAreMadeFirst) {
  const Matrix m(4, 32, 0x30, 0x7E, ScaleLayout::tensor);
  Weight invented = m.weight;
  invented.codes = invented.block_scales = {};
  invented.materialize = [&m](Weight& to) {
    to.codes = m.codes;
    to.block_scales = m.block_scales;
  };
  const Weight a = made(m.weight), b = made(invented);
  EXPECT_EQ(reencoded_to_fp8(invented).making_bytes, invented.bytes());
  ASSERT_EQ(a.codes.size(), b.codes.size());
  EXPECT_TRUE(std::equal(a.codes.begin(), a.codes.end(), b.codes.begin()));
}

TEST(Reencode, WhatIsNotFiniteIsRefused) {
  Matrix m(4, 32, 0x30, 0x7E, ScaleLayout::tensor);
  m.block_scales[5] = std::byte{0x7F};
  Weight w = reencoded_to_fp8(m.weight);
  EXPECT_THROW(w.materialize(w), Error);
  EXPECT_THROW(reencode_loss(m.weight), Error);
}

}  // namespace
}  // namespace nibble
