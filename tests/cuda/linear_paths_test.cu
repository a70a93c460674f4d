// linear_paths_test.cu: Linear of the paths sm70 and sm120 against the text of their contracts, byte by byte, by
// emulation where the device lacks the instruction. Cases and seeds as in linear_test.cu.
#include <gtest/gtest.h>

#include "backends/cuda/device/weight_f16.cuh"
#include "nibble/error.h"
#include "tests/cuda/linear_run.h"

namespace nibble::test {
namespace {

using cuda::ArchPath;

void check_all(const Combination& c, ArchPath path) {
  std::size_t index = 0;
  for (const Case& s : cases_of(c)) {
    check_case(c, s, index++, path);
    if (testing::Test::HasFatalFailure()) return;
  }
}

class LinearSm70 : public testing::TestWithParam<Combination> {};

TEST_P(LinearSm70, EqualsTheMirror) {
  NIBBLE_NEEDS_DEVICE();
  check_all(GetParam(), ArchPath::sm70);
}

INSTANTIATE_TEST_SUITE_P(All, LinearSm70, testing::ValuesIn(combinations()),
                         [](const auto& info) { return combination_name(info.param); });

class LinearSm120 : public testing::TestWithParam<Combination> {};

TEST_P(LinearSm120, EqualsTheMirror) {
  NIBBLE_NEEDS_DEVICE();
  check_all(GetParam(), ArchPath::sm120);
}

INSTANTIATE_TEST_SUITE_P(All, LinearSm120, testing::ValuesIn(sm120_combinations()),
                         [](const auto& info) { return combination_name(info.param); });

// What random bits are seldom: zero scales beside codes that are not, zero blocks of -0, the largest and the smallest
// scales beside the largest codes, whole rows of one of these.
TEST(LinearSm120Blocks, OddOnesKeepTheirBits) {
  NIBBLE_NEEDS_DEVICE();
  const Combination c{WeightFormat::nvfp4, ScaleLayout::row, Kind::nvfp4_static};
  for (const Case& s : {Case{200, 1040, 150, false, false, 0}, Case{464, 2064, 33, false, true, 0}}) {
    SCOPED_TRACE(case_text(c, s));
    OwnedWeight w(c, s, 21);
    LinearInput x = random_input(c, s, 22, ArchPath::sm120);
    Hash random{23};
    const auto change = [&](std::uint8_t* codes, std::uint8_t* scale, std::uint32_t sort) {
      constexpr std::uint8_t kScale[] = {0x00, 0x01, 0x07, 0x7E, 0x7E, 0x38};
      constexpr std::uint8_t kCodes[] = {0x77, 0x7F, 0xFF, 0x77, 0x7F, 0x88};
      if (sort >= std::size(kScale)) return;
      *scale = kScale[sort];
      std::memset(codes, kCodes[sort], 8);
    };
    auto* const codes = reinterpret_cast<std::uint8_t*>(w.codes.data());
    auto* const scales = reinterpret_cast<std::uint8_t*>(w.block_scales.data());
    const auto every = [&](std::int64_t rows, std::uint8_t* of_codes, std::uint8_t* of_scales) {
      for (std::int64_t b = 0; b < rows * s.k / 16; ++b) {
        const std::int64_t row = b / (s.k / 16);
        change(of_codes + b * 8, of_scales + b, row % 9 < 6 ? static_cast<std::uint32_t>(row % 9) : random() % 16);
      }
    };
    every(s.n, codes, scales);
    every(s.t, x.codes.data(), x.byte_scales.data());
    const OnDevice packed(w.weight, staging_for(w.weight, 1), ArchPath::sm120);
    std::vector<std::int64_t> columns(static_cast<std::size_t>(s.n));
    for (std::size_t i = 0; i < columns.size(); ++i) columns[i] = static_cast<std::int64_t>(i);
    std::vector<float> expected;
    mirror_linear(w.weight, format_of(c.kind), x, columns, expected, ArchPath::sm120);
    for (const std::int64_t gap : {kAligned, std::int64_t{3}}) {
      expect_same(expected, run_linear<float>(packed.image, format_of(c.kind), x, s.t, gap, ArchPath::sm120), "blocks");
    }
  }
}

// Every tile of the tiled kernel, several of them a block, and sums of several segments, against the plain kernel.
TEST(LinearSm120Large, TiledEqualsPlain) {
  NIBBLE_NEEDS_DEVICE();
  struct Large {
    std::int64_t n, k, t;
  };
  constexpr Large kLarge[] = {{5120, 6144, 1},  {5120, 6144, 33},   {5120, 6144, 100}, {5120, 6144, 300},
                              {2880, 2880, 257}, {34816, 528, 300}, {17280, 320, 520}, {34816, 1296, 17}};
  std::uint64_t seed = 40;
  for (const Large& l : kLarge) {
    const ScaleLayout layout = seed % 3 == 0 ? ScaleLayout::tensor : ScaleLayout::row;
    const Combination c{WeightFormat::nvfp4, layout, Kind::nvfp4_static};
    const Case s{l.n, l.k, l.t, false, seed % 4 < 2, 0};
    SCOPED_TRACE(case_text(c, s));
    const OwnedWeight w(c, s, ++seed);
    const OnDevice packed(w.weight, staging_for(w.weight, 2), ArchPath::sm120);
    const LinearInput x = random_input(c, s, ++seed, ArchPath::sm120);
    const auto run = [&](const LinearInput& rows, std::int64_t most, std::int64_t gap, Kernels kernels) {
      return run_linear(s.bf16_output, packed.image, format_of(c.kind), rows, most, gap, ArchPath::sm120, kernels);
    };
    const std::vector<float> plain = run(x, l.t, 3, Kernels::plain);
    for (const std::int64_t most : {l.t, 2 * l.t + 70}) {
      for (const Kernels kernels : {Kernels::tuned, Kernels::two_blocks}) {
        expect_same(plain, run(x, most, kAligned, kernels), "tiled");
        const LinearInput some = rows_of(x, 0, (l.t + 2) / 3);
        expect_same({plain.begin(), plain.begin() + some.rows * l.n}, run(some, most, kAligned, kernels), "some rows");
      }
    }
    if (HasFatalFailure()) return;
  }
}

// A weight packed for the FP4 unit serves unquantised inputs with the bits of one that was not.
TEST(LinearSm120Order, ServesOtherInputs) {
  NIBBLE_NEEDS_DEVICE();
  const Combination declared{WeightFormat::nvfp4, ScaleLayout::row, Kind::nvfp4_static};
  const Combination plain{WeightFormat::nvfp4, ScaleLayout::row, Kind::none};
  for (const std::int64_t t : {1, 8, 70}) {
    const Case s{200, 1040, t, true, false, 0};
    const OwnedWeight one(declared, s, 31), other(plain, s, 31);
    const OnDevice k64(one.weight, staging_for(one.weight, 1), ArchPath::sm120);
    const OnDevice k16(other.weight, staging_for(other.weight, 1), ArchPath::sm120);
    EXPECT_EQ(k64.image.order, cuda::CodeOrder::k64);
    EXPECT_EQ(k16.image.order, cuda::CodeOrder::k16);
    const LinearInput x = random_input(plain, s, 32, ArchPath::sm120);
    expect_same(run_linear<float>(k16.image, {}, x, s.t, 0, ArchPath::sm120),
                run_linear<float>(k64.image, {}, x, s.t, 0, ArchPath::sm120), "k64");
  }
}

// A case for each kernel of each path, small enough for tools that slow a kernel down a hundred times.
TEST(LinearSmall, EveryKernelOfEveryPath) {
  NIBBLE_NEEDS_DEVICE();
  for (const ArchPath path : {ArchPath::sm90, ArchPath::sm120, ArchPath::sm70}) {
    std::size_t index = 0;
    for (const Combination& c : combinations()) {
      for (const std::int64_t t : {1, 17, 70}) check_case(c, {77, 144, t, t == 17, t == 1, t == 17 ? 3 : 8}, index++, path);
      // Two segments: split, or folded, or both where a tile is cut.
      if (path == ArchPath::sm90 && c.layout == ScaleLayout::tensor && c.kind == Kind::none) {
        for (const std::int64_t t : {1, 33, 129}) check_case(c, {200, 2064, t, false, true, 0}, index++, path);
      }
      if (HasFatalFailure()) return;
    }
  }
}

cuda::LinearArgs arguments(ArchPath path, WeightFormat format, Kind kind) {
  static std::int32_t exponents[1];
  cuda::LinearArgs a;
  a.path = path;
  a.weight.format = format;
  a.weight.values = cuda::operand_of(path);
  const bool fp4 = path == ArchPath::sm120 && kind == Kind::nvfp4_static;
  if (fp4 && format == WeightFormat::nvfp4) a.weight.order = cuda::CodeOrder::k64;
  a.format.kind = kind;
  a.x.dtype = kind == Kind::none ? cuda::operand_of(path) : DType::u8;
  a.x.exponents = path == ArchPath::sm70 ? exponents : nullptr;
  return a;
}

bool starts(const char* name, const std::string& with) { return std::string(name).rfind(with, 0) == 0; }

TEST(LinearPaths, EachNamesItsKernel) {
  const auto name = [](ArchPath path, WeightFormat format, Kind kind) {
    return cuda::linear_kernel({}, arguments(path, format, kind));
  };
  using F = WeightFormat;
  EXPECT_TRUE(starts(name(ArchPath::sm90, F::nvfp4, Kind::nvfp4_static), "mma.m16n8k16"));
  EXPECT_TRUE(starts(name(ArchPath::sm120, F::nvfp4, Kind::nvfp4_static), "mma.m16n8k64 nvfp4"));
  EXPECT_TRUE(starts(name(ArchPath::sm120, F::nvfp4, Kind::none), "mma.m16n8k16"));
  EXPECT_TRUE(starts(name(ArchPath::sm120, F::fp8_e4m3, Kind::fp8_token), "mma.m16n8k16"));
  EXPECT_STREQ(name(ArchPath::sm70, F::nvfp4, Kind::nvfp4_static), "mma.m8n8k4 plain, emulated");
  EXPECT_STREQ(name(ArchPath::sm70, F::nvfp4, Kind::none), "mma.m8n8k4, emulated");
  EXPECT_STREQ(name(ArchPath::sm70, F::bf16, Kind::none), "mma.m8n8k4, emulated");
  EXPECT_STREQ(name(ArchPath::sm70, F::fp8_e4m3, Kind::none), "mma.m8n8k4 plain, emulated");  // a NaN, for all it knows
}

TEST(LinearPaths, TheTunedKernelOfSm70SaysWhyNot) {
  const auto why = [](const cuda::LinearArgs& a) {
    for (const auto& [kernel, reason] : cuda::linear_choices({}, a)) {
      if (kernel == "mma.m8n8k4, emulated" || kernel == "mma.m8n8k4") return reason;
    }
    return std::string("not in the table");
  };
  const cuda::LinearArgs good = arguments(ArchPath::sm70, WeightFormat::nvfp4, Kind::none);
  EXPECT_EQ(why(good), "served");
  const auto changed = [&](auto change) {
    cuda::LinearArgs a = good;
    change(a);
    EXPECT_TRUE(starts(cuda::linear_kernel({}, a), "mma.m8n8k4 plain"));
    return why(a);
  };
  EXPECT_EQ(changed([](auto& a) { a.x.stride = 12; }), "rows of x are not aligned to 16 bytes");
  EXPECT_EQ(changed([](auto& a) { a.x.data += 8; }), "x is not aligned to 16 bytes");
  EXPECT_EQ(changed([](auto& a) { a.weight.cols = 77; }), "the weight's columns are no multiple of 8");
  EXPECT_EQ(changed([](auto& a) { a.weight.format = WeightFormat::fp8_e4m3; }), "an FP8 code is NaN");
  EXPECT_EQ(changed([](auto& a) { a.format.kind = Kind::fp8_token; }), "x is quantised");
  EXPECT_EQ(changed([](auto& a) { a.y.dtype = DType::bf16; }), "y is not f32");
}

TEST(LinearPaths, RefusalsSayWhy) {
  cuda::LinearArgs a = arguments(ArchPath::sm70, WeightFormat::bf16, Kind::none);
  a.x.exponents = nullptr;
  try {
    static_cast<void>(cuda::linear_kernel({}, a));
    FAIL();
  } catch (const Error& e) {
    for (const char* part : {"mma.m8n8k4: x has no exponents", "mma.m8n8k4 plain: x has no exponents",
                             "mma.m16n8k16: the path is sm70",
                             "mma.m16n8k64 nvfp4: the path is not sm120"}) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }
}

TEST(LinearPaths, TheTiledKernelSaysWhyNot) {
  const auto why = [](auto change) {
    cuda::LinearArgs a = arguments(ArchPath::sm120, WeightFormat::nvfp4, Kind::nvfp4_static);
    change(a);
    const auto choices = cuda::linear_choices({}, a);
    EXPECT_TRUE(starts(choices[0].first.c_str(), "mma.m16n8k64 nvfp4, tiled"));
    EXPECT_EQ(choices[1].second, "served");
    EXPECT_FALSE(starts(cuda::linear_kernel({}, a), "mma.m16n8k64 nvfp4, tiled"));
    return choices[0].second;
  };
  EXPECT_EQ(why([](cuda::LinearArgs& a) { a.x.stride = 1440 + 8; }), "rows of x are not aligned to 16 bytes");
  EXPECT_EQ(why([](cuda::LinearArgs& a) { a.x_scales.stride = 2880 / 16; }),
            "rows of x's scales are not aligned to 16 bytes");
  // Nothing else multiplies FP4 by FP4 there: other bits would come out.
  cuda::LinearArgs a = arguments(ArchPath::sm120, WeightFormat::nvfp4, Kind::nvfp4_static);
  a.weight.order = cuda::CodeOrder::k16;
  EXPECT_ANY_THROW(static_cast<void>(cuda::linear_kernel({}, a)));
}

// Rows whose largest is far outside f16, subnormal, infinite or NaN.
TEST(LinearSm70Weights, KeepARowsRange) {
  NIBBLE_NEEDS_DEVICE();
  const Combination c{WeightFormat::f32, ScaleLayout::none, Kind::none};
  const Case s{70, 80, 5, false, false, 0};
  OwnedWeight w(c, s, 3);
  Hash random{9};
  for (std::int64_t n = 0; n < s.n; ++n) {
    for (std::int64_t k = 0; k < s.k; ++k) {
      float v = random.value(-3, 3);
      if (n % 10 == 1) v = random.value(100, 126);
      if (n % 10 == 2) v = random.value(-126, -100);
      if (n % 10 == 3) v = num::bit_cast<float>(random() & 0x807FFFFFu);
      if (n % 10 == 4) v = 0.0f;
      if (n % 10 == 5 && k == 7) v = INFINITY;
      if (n % 10 == 6 && k == 7) v = std::numeric_limits<float>::quiet_NaN();
      if (n % 10 == 7) v = random.value(-126, 127);
      if (n % 10 == 8) v = k == 3 ? num::bit_cast<float>(0x7F7FFFFFu) : random.value(90, 110);
      std::memcpy(w.codes.data() + (n * s.k + k) * 4, &v, sizeof v);
    }
  }
  w.weight.codes = w.codes;
  const OnDevice packed(w.weight, std::size_t{1} << 16, ArchPath::sm70);
  const LinearInput x = random_input(c, s, 4, ArchPath::sm70);
  const std::vector<float> y = run_linear<float>(packed.image, {}, x, s.t, 0, ArchPath::sm70);
  std::vector<std::int64_t> columns;
  for (std::int64_t n = 0; n < s.n; ++n) columns.push_back(n);
  std::vector<float> expected;
  mirror_linear(w.weight, {}, x, columns, expected, ArchPath::sm70);
  expect_same(expected, y, "f32 rows");
}

// What an image of f16 operands makes of a code and a block scale, wherever it lies in a word: no device.
TEST(LinearSm70Weights, EveryCodeTimesEveryScale) {
  for (std::uint32_t scale = 0; scale < 256; ++scale) {
    const float s = num::e4m3_to_float(static_cast<std::uint8_t>(scale));
    const std::uint32_t pair = cuda::f16_scale_twice(cuda::f16_scale_of(scale) << 8, 1);
    for (std::uint32_t first = 0; first < 16; ++first) {
      std::uint32_t codes = 0;
      for (std::uint32_t i = 0; i < 8; ++i) codes |= ((first + 5 * i) & 15u) << (4 * i);
      const std::uint32_t word = cuda::m8n8k4_word(codes);
      const uint4 v = cuda::nvfp4_columns((scale & 0x80u) != 0 ? word ^ 0xF000F000u : word, pair);
      const std::uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
      for (int i = 0; i < 8; ++i) {
        const auto code = static_cast<std::uint8_t>(codes >> (4 * i) & 15u);
        ASSERT_EQ(cuda::m8n8k4_code(word, i), code);
        const float found = num::f16_to_float(static_cast<std::uint16_t>(pairs[i / 2] >> (16 * (i % 2))));
        ASSERT_TRUE(same_bits(num::mul(num::e2m1_to_float(code), s), found)) << scale << " " << int{code};
      }
    }
  }
  for (std::uint32_t code = 0; code < 256; ++code) {
    if ((code & 0x7Fu) == 0x7F) continue;
    for (int i = 0; i < 4; ++i) {
      const uint2 v = cuda::fp8_columns(code << (8 * i));
      const std::uint32_t pair = i < 2 ? v.x : v.y;
      const float found = num::f16_to_float(static_cast<std::uint16_t>(pair >> (16 * (i % 2))));
      ASSERT_TRUE(same_bits(num::e4m3_to_float(static_cast<std::uint8_t>(code)), found)) << code;
    }
  }
}

// The same on the device, through the kernels of few and of many rows: row t of x picks column t. Row n of the weight
// has every code under scales n and 255 - n: zero and -0, the largest, subnormal ones and NaN among them.
TEST(LinearSm70Weights, EveryCodeAndScaleOnTheDevice) {
  NIBBLE_NEEDS_DEVICE();
  const Combination c{WeightFormat::nvfp4, ScaleLayout::tensor, Kind::none};
  const Case s{256, 32, 32, false, false, 0};
  OwnedWeight w(c, s, 1);
  for (std::size_t i = 0; i < w.codes.size(); ++i) {
    const auto low = static_cast<std::uint8_t>(2 * i % 16);
    w.codes[i] = static_cast<std::byte>(low | (low + 1) << 4);
  }
  for (std::size_t n = 0; n < 256; ++n) {
    w.block_scales[2 * n] = static_cast<std::byte>(n);
    w.block_scales[2 * n + 1] = static_cast<std::byte>(255 - n);
  }
  LinearInput x;
  x.rows = s.t;
  for (std::int64_t t = 0; t < s.t; ++t) {
    x.exponents.push_back(static_cast<std::int32_t>(t % 3));
    for (std::int64_t k = 0; k < s.k; ++k) x.values.push_back(k == t ? 0x3C00 : 0);
  }
  std::vector<std::int64_t> columns;
  for (std::int64_t n = 0; n < s.n; ++n) columns.push_back(n);
  std::vector<float> expected;
  mirror_linear(w.weight, {}, x, columns, expected, ArchPath::sm70);
  const OnDevice packed(w.weight, std::size_t{1} << 20, ArchPath::sm70);
  for (const std::int64_t most : {32, 64, 128}) {
    expect_same(expected, run_linear<float>(packed.image, {}, x, most, 0, ArchPath::sm70), "tuned");
  }
  expect_same(expected, run_linear<float>(packed.image, {}, x, 32, 3, ArchPath::sm70), "plain");
}

TEST(LinearSm70Weights, AnEmptyStepWritesNothing) {
  NIBBLE_NEEDS_DEVICE();
  const Combination c{WeightFormat::nvfp4, ScaleLayout::tensor, Kind::none};
  const OwnedWeight w(c, {96, 2048, 1, false, false, 0}, 1);
  const OnDevice packed(w.weight, std::size_t{1} << 20, ArchPath::sm70);
  const StepOnDevice step(plain_batch({}));
  DeviceMatrix<std::uint16_t> x(129, 2048);
  DeviceMatrix<float> y(129, 96);
  DeviceArray<std::int32_t> exponents(129);
  cuda::LinearArgs args{x.view(), {}, {}, packed.image, y.view(), ArchPath::sm70};
  args.x.dtype = DType::f16;
  args.x.exponents = exponents.data();
  cuda::Launch to;
  to.step = step.device();
  to.multiprocessors = multiprocessors();
  for (std::byte* const sums : {static_cast<std::byte*>(nullptr), linear_sums()}) {
    to.sums = sums;
    for (const std::int64_t most : {8, 64, 129}) {
      to.max_rows = most;
      cuda::linear(to, args);
      finish_device();
    }
  }
  for (const float v : y.download()) ASSERT_EQ(num::bit_cast<std::uint32_t>(v), 0xFFFFFFFFu);
  EXPECT_EQ(y.damage(), "");
}

}  // namespace
}  // namespace nibble::test
