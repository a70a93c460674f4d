// linear_paths_test.cu: Linear of the paths sm70 and sm120 against the text of their contracts, byte by byte, by
// emulation where the device lacks the instruction. Cases and seeds as in linear_test.cu.
#include <gtest/gtest.h>

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
  EXPECT_STREQ(name(ArchPath::sm70, F::nvfp4, Kind::nvfp4_static), "mma.m8n8k4, emulated");
  EXPECT_STREQ(name(ArchPath::sm70, F::bf16, Kind::none), "mma.m8n8k4, emulated");
}

TEST(LinearPaths, RefusalsSayWhy) {
  cuda::LinearArgs a = arguments(ArchPath::sm70, WeightFormat::bf16, Kind::none);
  a.x.exponents = nullptr;
  try {
    static_cast<void>(cuda::linear_kernel({}, a));
    FAIL();
  } catch (const Error& e) {
    for (const char* part : {"mma.m8n8k4: x has no exponents", "mma.m16n8k16: the path is sm70",
                             "mma.m16n8k64 nvfp4: the path is not sm120"}) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }
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

}  // namespace
}  // namespace nibble::test
