// linear_test.cu: packed weights, Linear and Embed against the text of their contracts, byte by byte.
// Repro of a failing case: its text names combination and sizes; seeds follow from its index.
#include <gtest/gtest.h>

#include <set>

#include "backends/cuda/device/weight_decode.cuh"
#include "tests/cuda/linear_run.h"

namespace nibble::test {
namespace {

class LinearBits : public testing::TestWithParam<Combination> {};

TEST_P(LinearBits, EqualTheMirror) {
  NIBBLE_NEEDS_DEVICE();
  std::size_t index = 0;
  for (const Case& s : cases_of(GetParam())) {
    check_case(GetParam(), s, index++);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, LinearBits, testing::ValuesIn(combinations()),
                         [](const auto& info) { return combination_name(info.param); });

// No device: what the tables above and in linear_paths_test.cu generate (that one runs this table again for sm70).
TEST(LinearCases, AreManyAndReachEveryKernel) {
  std::size_t count = 0, few = 0;
  for (const Combination& c : combinations()) {
    std::set<std::int64_t> t;
    bool odd_rows = false, odd_cols = c.format == WeightFormat::nvfp4;  // whole blocks of 16
    for (const Case& s : cases_of(c)) {
      ++count;
      few += s.t <= 8;
      t.insert(s.t);
      odd_rows = odd_rows || (s.n % 2 == 1 && s.n > 1);
      odd_cols = odd_cols || (s.k % 2 == 1 && s.k > 1);
    }
    for (const std::int64_t each : kEveryT) EXPECT_TRUE(t.contains(each)) << combination_name(c) << " T=" << each;
    EXPECT_TRUE(odd_rows && odd_cols) << combination_name(c);
  }
  EXPECT_GE(count, 1302u);  // as many as llama.cpp's test-backend-ops has
  EXPECT_GE(few, 200u);
  RecordProperty("cases", static_cast<int>(count));
}

TEST(Linear, NamesItsKernel) {
  NIBBLE_NEEDS_DEVICE();
  int major = 0, minor = 0;
  cuda_ok(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  cuda_ok(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
  const bool native = minor == 0 && (major == 9 || major == 12);
  EXPECT_STREQ(cuda::linear_kernel({}, {}), native ? "mma.m16n8k16" : "mma.m16n8k16, emulated");
  cuda::Launch tuned;
  tuned.multiprocessors = multiprocessors();
  tuned.sums = linear_sums();
  cuda::LinearArgs args;
  args.weight.plain = true;
  if (major == 9 && minor == 0) {
    EXPECT_STREQ(cuda::linear_kernel(tuned, args), "wgmma.m64k16");
    args.x.stride = 12;
    EXPECT_STREQ(cuda::linear_kernel(tuned, args), "mma.m16n8k16");
    for (const auto& [kernel, why] : cuda::linear_choices(tuned, args)) {
      if (kernel == "wgmma.m64k16") {
        EXPECT_EQ(why, "rows of x are not aligned to 16 bytes");
      }
    }
  }
}

// Those of sm_90's kernels by name: tests above run each where it serves.
TEST(Linear, TilesSayWhyTheyDoNotServe) {
  NIBBLE_NEEDS_DEVICE();
  cuda::Launch to;
  to.max_rows = 40;
  to.multiprocessors = multiprocessors();
  to.sums = linear_sums();
  cuda::LinearArgs args;
  args.weight.plain = true;
  args.weight.format = WeightFormat::bf16;
  args.weight.rows = args.weight.padded_rows = 5120;
  args.weight.cols = args.weight.padded_cols = 17408;
  const std::vector<cuda::LinearTile> tiles = cuda::linear_tiles(to, args);
  if (std::string(cuda::linear_kernel(to, args)) != "wgmma.m64k16") {
    EXPECT_TRUE(tiles.empty());
    return;
  }
  ASSERT_EQ(tiles.size(), static_cast<std::size_t>(cuda::linear_tile_count()));
  const auto refusal = [&](const char* name) {
    for (const cuda::LinearTile& t : tiles) {
      if (t.name == name) return t.refusal;
    }
    return std::string("no such tile");
  };
  EXPECT_EQ(refusal("128x16"), "the class has more rows");
  EXPECT_EQ(refusal("128x64"), "");
  EXPECT_EQ(refusal("128x256, totals in memory"), "");
  const auto choices = cuda::linear_choices(to, args);
  EXPECT_EQ(std::string(choices.at(choices.size() - 2).second).rfind("served, tile 128x64, 160 units of one segment", 0), 0u)
      << choices.at(choices.size() - 2).second;
}

TEST(Linear, AnEmptyStepWritesNothing) {
  NIBBLE_NEEDS_DEVICE();
  const Combination c{WeightFormat::bf16, ScaleLayout::none, Kind::none};
  const OwnedWeight w(c, {77, 96, 1, false, false, 0}, 1);
  const OnDevice packed(w.weight, std::size_t{1} << 20);
  const StepOnDevice step(plain_batch({}));
  DeviceMatrix<std::uint16_t> x(65, 96);
  DeviceMatrix<float> y(65, 77);
  cuda::Launch to;
  to.step = step.device();
  to.multiprocessors = multiprocessors();
  for (std::byte* const sums : {static_cast<std::byte*>(nullptr), linear_sums()}) {  // plain and tuned kernels
    to.sums = sums;
    for (const std::int64_t most : {8, 65}) {
      to.max_rows = most;
      cuda::linear(to, {x.view(), {}, {}, packed.image, y.view()});
      finish_device();
    }
  }
  for (const float v : y.download()) ASSERT_EQ(num::bit_cast<std::uint32_t>(v), 0xFFFFFFFFu);
  EXPECT_EQ(y.damage(), "");
}

void check_embed(const Combination& c, cuda::ArchPath path) {
  for (const std::int64_t k : {16, 96, 1040}) {
    const Case s{203, k, 1, true, false, 0};
    const OwnedWeight w(c, s, static_cast<std::uint64_t>(k));
    const OnDevice packed(w.weight, staging_for(w.weight, 1), path);
    std::vector<std::int32_t> tokens;
    for (std::int32_t i = 0; i < 203; ++i) tokens.push_back((i * 64 + 5) % 203);
    const StepOnDevice step(plain_batch(tokens));
    cuda::Launch to;
    to.step = step.device();
    to.max_rows = 210;
    DeviceMatrix<float> y(210, k, 3);
    cuda::embed(to, {packed.image, y.view()});
    finish_device();
    EXPECT_EQ(y.damage(), "");
    const std::vector<float> found = y.download();
    std::vector<float> operands(static_cast<std::size_t>(k));
    for (std::size_t r = 0; r < tokens.size(); ++r) {
      const std::int64_t n = tokens[r];
      const float unit = weight_row_of(w.weight, path, n, operands.data());
      for (std::int64_t i = 0; i < k; ++i) {
        float scale = unit;
        if (c.layout == ScaleLayout::tensor) scale = w.weight.scales[0];
        if (c.layout == ScaleLayout::row) scale = w.weight.scales[static_cast<std::size_t>(n)];
        if (shifted(w.weight, path)) scale = num::mul(scale, num::kSm90Nvfp4Scale);
        if (c.layout == ScaleLayout::block128) {
          scale = w.weight.scales[static_cast<std::size_t>(n / 128 * ((k + 127) / 128) + i / 128)];
        }
        const float want = num::mul(operands[static_cast<std::size_t>(i)], scale);
        ASSERT_TRUE(same_bits(want, found[r * static_cast<std::size_t>(k) + static_cast<std::size_t>(i)]))
            << combination_name(c) << " row " << n << " column " << i;
      }
    }
    for (std::size_t i = tokens.size() * static_cast<std::size_t>(k); i < found.size(); ++i) {
      ASSERT_EQ(num::bit_cast<std::uint32_t>(found[i]), 0xFFFFFFFFu);
    }
  }
}

class EmbedBits : public testing::TestWithParam<Combination> {};

TEST_P(EmbedBits, EqualTheContract) {
  NIBBLE_NEEDS_DEVICE();
  check_embed(GetParam(), cuda::ArchPath::sm90);
  check_embed(GetParam(), cuda::ArchPath::sm70);
}
TEST(EmbedFp4, EqualsTheContract) {
  NIBBLE_NEEDS_DEVICE();
  check_embed({WeightFormat::nvfp4, ScaleLayout::row, Kind::nvfp4_static}, cuda::ArchPath::sm120);
}

std::vector<Combination> tables() {
  std::vector<Combination> all;
  for (const Combination& c : combinations()) {
    if (c.kind == Kind::none) all.push_back(c);
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, EmbedBits, testing::ValuesIn(tables()),
                         [](const auto& info) { return combination_name(info.param); });

// The device's own conversions on the host: the same integers, another multiplication.
TEST(WeightDecode, PairsAreExact) {
  const auto low = [](std::uint32_t pair) { return num::bf16_to_float(static_cast<std::uint16_t>(pair)); };
  const auto high = [](std::uint32_t pair) { return num::bf16_to_float(static_cast<std::uint16_t>(pair >> 16)); };
  for (std::uint32_t s = 0; s < 256; ++s) {
    const auto scale = static_cast<std::uint8_t>(s), other = static_cast<std::uint8_t>(s * 7 + 3);
    const float value = num::e4m3_to_float(scale);
    const std::uint32_t both = cuda::e4m3_adjacent(s | static_cast<std::uint32_t>(other) << 8);
    EXPECT_TRUE(same_bits(low(both), value)) << s;
    EXPECT_TRUE(same_bits(high(both), num::e4m3_to_float(other))) << s;
    for (std::uint32_t code = 0; code < 16; ++code) {
      for (std::uint32_t second = 0; second < 16; ++second) {
        std::uint32_t a[4];
        const std::uint32_t word = code | second << 4 | (15u - code) << 8 | 5u << 12 | second << 16 |
                                   code << 20 | 9u << 24 | (15u - second) << 28;
        cuda::nvfp4_fragment(word, s | static_cast<std::uint32_t>(other) << 8, a);
        for (std::uint32_t j = 0; j < 4; ++j) {
          const float with = num::e4m3_to_float(j % 2 == 0 ? scale : other);
          const auto l = static_cast<std::uint8_t>(word >> (4 * j) & 15u);
          const auto h = static_cast<std::uint8_t>(word >> (16 + 4 * j) & 15u);
          ASSERT_TRUE(same_bits(low(a[j]), num::e2m1_to_float(l) * with)) << s << " " << word;
          ASSERT_TRUE(same_bits(high(a[j]), num::e2m1_to_float(h) * with)) << s << " " << word;
        }
      }
    }
  }
}

// What sm90 keeps: any nibbles and any e4m3 give code * scale * 2^-7, signs and zeros of scales by way of codes.
TEST(WeightDecode, ArrangedWordsAreExact) {
  for (std::uint32_t s = 0; s < 256; ++s) {
    const auto scale = static_cast<std::uint8_t>(s), other = static_cast<std::uint8_t>(s * 7 + 3);
    const auto coded = [](std::uint32_t byte) { return cuda::e5m3_of(byte); };
    for (std::uint32_t seed = 0; seed < 64; ++seed) {
      Hash random{s << 8 | seed};
      const std::uint32_t nibbles[2] = {random(), random()};
      const std::uint8_t scales[4] = {scale, other, static_cast<std::uint8_t>(s * 11 + 5), static_cast<std::uint8_t>(~s)};
      std::uint32_t pair[2] = {nibbles[0], nibbles[1]};
      cuda::arrange(pair);
      std::uint8_t bytes[4];
      for (int i = 0; i < 4; ++i) bytes[i] = static_cast<std::uint8_t>(coded(scales[i]));
      const std::uint32_t word = cuda::arranged_scales(bytes);
      std::uint32_t a[2][4];
      cuda::arranged_fragment<0>(pair[0], pair[1], word, a[0]);
      cuda::arranged_fragment<1>(pair[0], pair[1], word, a[1]);
      for (int i = 0; i < 16; ++i) {
        const int step = i / 8, reg = i % 4, half = i / 4 % 2;
        const auto code = static_cast<std::uint8_t>(nibbles[step] >> (i % 8 * 4) & 15u);
        ASSERT_EQ(cuda::arranged_code(pair, step, reg, half), code) << nibbles[0] << " " << nibbles[1] << " " << i;
        ASSERT_EQ(cuda::arranged_scale(word, step, reg % 2), bytes[step * 2 + reg % 2]) << s << " " << i;
        const std::uint8_t by = scales[step * 2 + reg % 2] & 0x7F;
        const float with = by == 0 ? 1.0f : num::e4m3_to_float(by);
        const auto found = static_cast<std::uint16_t>(a[step][reg] >> (16 * half));
        ASSERT_TRUE(same_bits(num::bf16_to_float(found), num::e2m1_to_float(code) * with * 0x1p-7f)) << s << " " << i;
      }
      if ((scale & 0x7F) == 0x7F) continue;
      EXPECT_TRUE(same_bits(cuda::e5m3_to_unit(coded(scale)),
                            ((scale & 0x7F) == 0 ? 1.0f : std::fabs(num::e4m3_to_float(scale))) * 0x1p-7f));
    }
  }
}

TEST(WeightDecode, EveryElementHasItsPlace) {
  std::vector<int> nibbles(1024), bytes(1024), values(1024), k64(1024);
  for (int row = 0; row < 16; ++row) {
    for (int col = 0; col < 64; ++col) {
      const cuda::UnitPlace u = cuda::unit_place(row, col);
      ++k64.at(static_cast<std::size_t>(cuda::nvfp4_k64_at(row, col)));
      ++nibbles.at(static_cast<std::size_t>(cuda::nvfp4_at(u)));
      ++bytes.at(static_cast<std::size_t>(cuda::fp8_at(u)));
      ++values.at(static_cast<std::size_t>(cuda::bf16_at(u)));
    }
  }
  EXPECT_EQ(k64, std::vector<int>(1024, 1));
  EXPECT_EQ(nibbles, std::vector<int>(1024, 1));
  EXPECT_EQ(bytes, std::vector<int>(1024, 1));
  EXPECT_EQ(values, std::vector<int>(1024, 1));
}

TEST(WeightImage, RefusesWhatDoesNotFit) {
  const Combination c{WeightFormat::nvfp4, ScaleLayout::tensor, Kind::none};
  OwnedWeight w(c, {16, 32, 1, false, false, 0}, 1);
  EXPECT_EQ(cuda::image_bytes(w.weight) % 256, 0u);
  EXPECT_EQ(cuda::image_bytes(w.weight), 64u * 64 / 2 + 64 * 4 + 64 * 4 + 256);
  w.weight.cols = 40;
  EXPECT_ANY_THROW(static_cast<void>(cuda::image_bytes(w.weight)));
  w.weight.cols = 32;
  w.weight.scales.clear();
  EXPECT_ANY_THROW(static_cast<void>(cuda::image_bytes(w.weight)));
}

}  // namespace
}  // namespace nibble::test
