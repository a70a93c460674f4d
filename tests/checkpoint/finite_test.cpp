// NaN and infinity in every stored format: found wherever they are, and said with their place.
#include "core/checkpoint/finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/checkpoint/support.h"

namespace nibble {
namespace {

using test::complaint;

struct Held {
  std::vector<std::byte> codes, scales;
  Weight weight;
};

// Zeros, one byte off alignment as files may have them.
Held zeros(WeightFormat format, std::int64_t rows, std::int64_t cols) {
  Held h;
  h.weight.name = "m";
  h.weight.format = format;
  h.weight.rows = rows;
  h.weight.cols = cols;
  const auto n = static_cast<std::size_t>(rows * cols);
  const std::size_t bytes = format == WeightFormat::f32        ? 4 * n
                            : format == WeightFormat::nvfp4    ? n / 2
                            : format == WeightFormat::fp8_e4m3 ? n
                                                               : 2 * n;
  h.codes.resize(bytes + 1);
  h.weight.codes = Bytes(h.codes).subspan(1);
  if (format == WeightFormat::nvfp4) {
    h.scales.resize(n / 16 + 1);
    h.weight.block_scales = Bytes(h.scales).subspan(1);
  }
  return h;
}

template <class T>
void put(Held& h, std::size_t at, T value) {
  std::memcpy(h.codes.data() + 1 + at * sizeof(T), &value, sizeof(T));
}

std::string refusal(const Weight& w) {
  return complaint([&] { check_finite(w); }, ErrorCode::bad_file);
}

TEST(Finite, OneValueAnywhereIsFoundWithItsPlace) {
  constexpr std::int64_t kRows = 70, kCols = 131;  // more than one run, and a part of one
  for (const std::int64_t at : {0l, 130l, 131l, 4095l, 4096l, 70l * 131 - 1}) {
    const auto i = static_cast<std::size_t>(at);
    const std::string place =
        " at [" + std::to_string(at / kCols) + ", " + std::to_string(at % kCols) + "]";
    const auto expect = [&](WeightFormat format, auto value, const char* name) {
      Held h = zeros(format, kRows, kCols);
      ASSERT_EQ(refusal(h.weight), "");
      put(h, i, value);
      EXPECT_EQ(refusal(h.weight), "[weights] tensor \"m\": expected finite values, found " +
                                       std::string(name) + place);
      EXPECT_FALSE(all_finite(h.weight, at / kCols, at / kCols + 1));
      EXPECT_TRUE(all_finite(h.weight, 0, at / kCols));
      EXPECT_TRUE(all_finite(h.weight, at / kCols + 1, kRows));
    };
    expect(WeightFormat::f32, std::nanf(""), "NaN");
    expect(WeightFormat::f32, -INFINITY, "-inf");
    expect(WeightFormat::f16, std::uint16_t{0x7c00}, "inf");
    expect(WeightFormat::f16, std::uint16_t{0xfe00}, "NaN");
    expect(WeightFormat::bf16, std::uint16_t{0x7f80}, "inf");
    expect(WeightFormat::bf16, std::uint16_t{0xffc1}, "NaN");
    expect(WeightFormat::fp8_e4m3, std::uint8_t{0x7f}, "NaN");
    expect(WeightFormat::fp8_e4m3, std::uint8_t{0xff}, "NaN");
  }
}

TEST(Finite, TheLargestValuesPass) {
  Held f32 = zeros(WeightFormat::f32, 1, 2);
  put(f32, 0, 3.4028235e38f);
  put(f32, 1, -1e-45f);
  EXPECT_EQ(refusal(f32.weight), "");
  Held f16 = zeros(WeightFormat::f16, 1, 2);
  put(f16, 0, std::uint16_t{0x7bff});
  put(f16, 1, std::uint16_t{0xfbff});
  EXPECT_EQ(refusal(f16.weight), "");
  Held bf16 = zeros(WeightFormat::bf16, 1, 1);
  put(bf16, 0, std::uint16_t{0xff7f});
  EXPECT_EQ(refusal(bf16.weight), "");
  Held fp8 = zeros(WeightFormat::fp8_e4m3, 1, 256);
  for (unsigned code = 0; code < 256; ++code) {
    put(fp8, code, static_cast<std::uint8_t>((code & 0x7f) == 0x7f ? 0 : code));
  }
  EXPECT_EQ(refusal(fp8.weight), "");
}

TEST(Finite, BlockScalesAreUnsigned) {
  Held h = zeros(WeightFormat::nvfp4, 3, 64);
  for (std::byte& two : h.codes) two = std::byte{0xff};  // every code is a number
  for (std::byte& scale : h.scales) scale = std::byte{0x7e};
  EXPECT_EQ(refusal(h.weight), "");
  h.weight.scales_origin = "a.safetensors: tensor \"m.weight_scale\"";
  h.scales[1 + 6] = std::byte{0xff};
  EXPECT_EQ(refusal(h.weight),
            "[weights] a.safetensors: tensor \"m.weight_scale\": expected finite values, found NaN "
            "at [1, 2]");
  h.scales[1 + 5] = std::byte{0x80};
  EXPECT_EQ(refusal(h.weight),
            "[weights] a.safetensors: tensor \"m.weight_scale\": expected scales without a sign, "
            "found a negative one at [1, 1]");
  EXPECT_TRUE(all_finite(h.weight, 2, 3));
}

TEST(Finite, ScalesLeaveRoomForAProfilesPowerOfTwo) {
  Held h = zeros(WeightFormat::nvfp4, 3, 64);
  h.weight.scale_layout = ScaleLayout::row;
  h.weight.scales = {0x1.fp119f, -0x1.fp119f, 1.0f};
  EXPECT_EQ(refusal(h.weight), "");
  EXPECT_TRUE(all_finite(h.weight, 0, 3));
  h.weight.scales[2] = 0x1p120f;
  EXPECT_FALSE(all_finite(h.weight, 0, 1));
  const std::string text = refusal(h.weight);
  EXPECT_NE(text.find("expected tensor and row scales of NVFP4 below 2^120"), std::string::npos) << text;
  EXPECT_NE(text.find("found 1.32923e+36 at [2, 0]"), std::string::npos) << text;
}

}  // namespace
}  // namespace nibble
