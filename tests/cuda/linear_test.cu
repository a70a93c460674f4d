// linear_test.cu: packed weights, Linear and Embed against the text of their contracts, byte by byte.
// Repro of a failing case: its text names combination and sizes; seeds follow from its index.
#include <gtest/gtest.h>

#include <memory>

#include "backends/cuda/device/weight_decode.cuh"
#include "backends/cuda/ops/linear.h"
#include "tests/cuda/linear_cases.h"
#include "tests/cuda/step_on_device.h"
#include "tests/support/buffers.h"

namespace nibble::test {
namespace {

struct PinnedMemory {
  explicit PinnedMemory(std::size_t bytes) { cuda_ok(cudaMallocHost(&data, bytes)); }
  ~PinnedMemory() { cudaFreeHost(data); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  void* data = nullptr;
};

// A weight packed through staging memory of `staging` bytes.
struct OnDevice {
  OnDevice(const Weight& w, std::size_t staging) : arena(cuda::image_bytes(w)) {
    const PinnedMemory host(staging);
    DeviceArray<std::byte> device(staging);
    image = cuda::pack_weight(w, arena.raw(),
                              {static_cast<std::byte*>(host.data), device.raw(), staging, nullptr});
    finish_device();
    EXPECT_EQ(device.damage(), "");
  }
  DeviceArray<std::byte> arena;
  cuda::WeightImage image;
};

// The smallest that takes 64 rows at a time, twice that and a little, or plenty.
std::size_t staging_for(const Weight& w, std::size_t turn) {
  const std::size_t row = w.codes.size() / static_cast<std::size_t>(w.rows);
  const std::size_t least = row * 64;
  if (least > (1u << 22)) return 2 * least;
  return turn % 3 == 0 ? least : turn % 3 == 1 ? 2 * least + 600 : std::size_t{16} << 20;
}

template <class T>
std::vector<T> with_rows(std::vector<T> values, std::int64_t rows, std::int64_t all) {
  const std::size_t width = values.size() / static_cast<std::size_t>(rows);
  const std::size_t old = values.size();
  values.resize(width * static_cast<std::size_t>(all));
  if (values.size() > old) {
    std::memset(static_cast<void*>(values.data() + old), 0xFF, (values.size() - old) * sizeof(T));
  }
  return values;
}

// [T, N] widened. The class has `most` rows; those past the input's are NaN and must stay untouched.
template <class Y>
std::vector<float> run_linear(const cuda::WeightImage& image, const ActivationFormat& format,
                              const LinearInput& x, std::int64_t most, std::int64_t gap) {
  const std::int64_t k = image.cols, n = image.rows, across = (k + 127) / 128;
  const StepOnDevice step(plain_batch(std::vector<std::int32_t>(static_cast<std::size_t>(x.rows))));
  cuda::Launch to;
  to.step = step.device();
  to.max_rows = most;
  cuda::LinearArgs args;
  args.format = format;
  args.weight = image;
  std::unique_ptr<DeviceMatrix<std::uint16_t>> values;
  std::unique_ptr<DeviceMatrix<std::uint8_t>> codes, bytes;
  std::unique_ptr<DeviceMatrix<float>> scales;
  if (format.kind == Kind::none) {
    values = std::make_unique<DeviceMatrix<std::uint16_t>>(with_rows(x.values, x.rows, most), most, k, gap);
    args.x = values->view();
  } else {
    const std::int64_t width = format.kind == Kind::nvfp4_static ? k / 2 : k;
    codes = std::make_unique<DeviceMatrix<std::uint8_t>>(with_rows(x.codes, x.rows, most), most, width, gap);
    args.x = codes->view();
  }
  if (format.kind == Kind::nvfp4_static) {
    bytes = std::make_unique<DeviceMatrix<std::uint8_t>>(with_rows(x.byte_scales, x.rows, most), most,
                                                         k / 16, gap);
    args.x_scales = bytes->view();
  }
  if (format.kind == Kind::fp8_token || format.kind == Kind::fp8_token_group128) {
    scales = std::make_unique<DeviceMatrix<float>>(with_rows(x.scales, x.rows, most), most,
                                                   format.kind == Kind::fp8_token ? 1 : across, gap);
    args.x_scales = scales->view();
  }
  DeviceMatrix<Y> y(most, n, gap);
  args.y = y.view();
  cuda::linear(to, args);
  finish_device();
  EXPECT_EQ(y.damage(), "");
  const std::vector<Y> raw = y.download();
  std::vector<float> out;
  for (std::size_t i = 0; i < raw.size(); ++i) {
    if (i >= static_cast<std::size_t>(x.rows * n)) {
      unsigned char b[sizeof(Y)];
      std::memcpy(b, &raw[i], sizeof b);
      EXPECT_EQ(b[0], 0xFF) << "a row past the step's count was written";
      if (b[0] != 0xFF) break;
    } else if constexpr (std::is_same_v<Y, float>) {
      out.push_back(raw[i]);
    } else {
      out.push_back(num::bf16_to_float(raw[i]));
    }
  }
  return out;
}

std::vector<float> run_linear(bool bf16, const cuda::WeightImage& image, const ActivationFormat& f,
                              const LinearInput& x, std::int64_t most, std::int64_t gap) {
  return bf16 ? run_linear<std::uint16_t>(image, f, x, most, gap)
              : run_linear<float>(image, f, x, most, gap);
}

// All of them in small cases, else the edges of tiles and some between.
std::vector<std::int64_t> columns_for(const Case& s) {
  const std::int64_t want = std::max<std::int64_t>(6, 3'000'000 / (s.t * s.k));
  std::vector<std::int64_t> columns;
  if (want >= s.n) {
    for (std::int64_t n = 0; n < s.n; ++n) columns.push_back(n);
    return columns;
  }
  Hash random{static_cast<std::uint64_t>(s.n * 31 + s.k)};
  for (const std::int64_t n : {std::int64_t{0}, s.n - 1}) columns.push_back(n);
  while (static_cast<std::int64_t>(columns.size()) < want) columns.push_back(random() % s.n);
  return columns;
}

void expect_same(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_TRUE(same_bits(a[i], b[i])) << what << ", element " << i << ": " << a[i] << " and " << b[i];
  }
}

void check_case(const Combination& c, const Case& s, std::size_t index) {
  SCOPED_TRACE(case_text(c, s));
  const OwnedWeight w(c, s, 1000 + index);
  const OnDevice packed(w.weight, staging_for(w.weight, index));
  ASSERT_EQ(packed.arena.damage(), "");
  const ActivationFormat format = format_of(c.kind);
  const LinearInput x = random_input(c, s, 5000 + index);
  const std::vector<float> y = run_linear(s.bf16_output, packed.image, format, x, s.t, s.gap);

  const std::vector<std::int64_t> columns = columns_for(s);
  std::vector<float> expected;
  mirror_linear(w.weight, format, x, columns, expected);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::size_t row = i / columns.size();
    const std::int64_t n = columns[i % columns.size()];
    const float want = s.bf16_output ? num::bf16_to_float(num::float_to_bf16(expected[i])) : expected[i];
    const float found = y[row * static_cast<std::size_t>(s.n) + static_cast<std::size_t>(n)];
    ASSERT_TRUE(same_bits(want, found))
        << "y[" << row << ", " << n << "]: expected " << want << ", found " << found << std::hexfloat
        << " (" << want << ", " << found << ")";
  }
  // Classes of more rows take other kernels.
  for (const std::int64_t most : {s.t + 1, s.t + 8, s.t + 16, s.t + 64}) {
    if (index % 4 != 0 && most != s.t + 64) continue;
    expect_same(y, run_linear(s.bf16_output, packed.image, format, x, most, 1 + s.gap), "a larger class");
  }
  for (const std::int64_t row : {std::int64_t{0}, s.t / 2, s.t - 1}) {
    const auto first = y.begin() + row * s.n;
    expect_same({first, first + s.n},
                run_linear(s.bf16_output, packed.image, format, row_of(x, row), 1, s.gap), "a row alone");
  }
}

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

TEST(LinearCases, AreManyAndReachEveryKernel) {
  std::size_t count = 0, few = 0;
  for (const Combination& c : combinations()) {
    for (const Case& s : cases_of(c)) {
      ++count;
      few += s.t <= 8;
    }
  }
  EXPECT_GE(count, 900u);
  EXPECT_GE(few, 200u);
}

TEST(Linear, NamesItsKernel) {
  NIBBLE_NEEDS_DEVICE();
  int major = 0, minor = 0;
  cuda_ok(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  cuda_ok(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
  const bool native = minor == 0 && (major == 9 || major == 12);
  EXPECT_STREQ(cuda::linear_kernel({}), native ? "mma.m16n8k16" : "emulated mma.m16n8k16");
}

TEST(Linear, AnEmptyStepWritesNothing) {
  NIBBLE_NEEDS_DEVICE();
  const Combination c{WeightFormat::bf16, ScaleLayout::none, Kind::none};
  const OwnedWeight w(c, {77, 96, 1, false, false, 0}, 1);
  const OnDevice packed(w.weight, std::size_t{1} << 20);
  const StepOnDevice step(plain_batch({}));
  DeviceMatrix<std::uint16_t> x(65, 96);
  DeviceMatrix<float> y(65, 77);
  for (const std::int64_t most : {8, 65}) {
    cuda::Launch to;
    to.step = step.device();
    to.max_rows = most;
    cuda::linear(to, {x.view(), {}, {}, packed.image, y.view()});
    finish_device();
  }
  for (const float v : y.download()) ASSERT_EQ(num::bit_cast<std::uint32_t>(v), 0xFFFFFFFFu);
  EXPECT_EQ(y.damage(), "");
}

class EmbedBits : public testing::TestWithParam<Combination> {};

TEST_P(EmbedBits, EqualTheContract) {
  NIBBLE_NEEDS_DEVICE();
  const Combination c = GetParam();
  for (const std::int64_t k : {16, 96, 1040}) {
    const Case s{203, k, 1, true, false, 0};
    const OwnedWeight w(c, s, static_cast<std::uint64_t>(k));
    const OnDevice packed(w.weight, staging_for(w.weight, 1));
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
    for (std::size_t r = 0; r < tokens.size(); ++r) {
      const std::int64_t n = tokens[r];
      for (std::int64_t i = 0; i < k; ++i) {
        float scale = 1;
        if (c.layout == ScaleLayout::tensor) scale = w.weight.scales[0];
        if (c.layout == ScaleLayout::row) scale = w.weight.scales[static_cast<std::size_t>(n)];
        if (c.layout == ScaleLayout::block128) {
          scale = w.weight.scales[static_cast<std::size_t>(n / 128 * ((k + 127) / 128) + i / 128)];
        }
        const float want = num::mul(weight_operand(w.weight, n, i), scale);
        ASSERT_TRUE(same_bits(want, found[r * static_cast<std::size_t>(k) + static_cast<std::size_t>(i)]))
            << combination_name(c) << " row " << n << " column " << i;
      }
    }
    for (std::size_t i = tokens.size() * static_cast<std::size_t>(k); i < found.size(); ++i) {
      ASSERT_EQ(num::bit_cast<std::uint32_t>(found[i]), 0xFFFFFFFFu);
    }
  }
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

TEST(WeightDecode, EveryElementHasItsPlace) {
  std::vector<int> nibbles(1024), bytes(1024), values(1024);
  for (int row = 0; row < 16; ++row) {
    for (int col = 0; col < 64; ++col) {
      const cuda::UnitPlace u = cuda::unit_place(row, col);
      ++nibbles.at(static_cast<std::size_t>(cuda::nvfp4_at(u)));
      ++bytes.at(static_cast<std::size_t>(cuda::fp8_at(u)));
      ++values.at(static_cast<std::size_t>(cuda::bf16_at(u)));
    }
  }
  EXPECT_EQ(nibbles, std::vector<int>(1024, 1));
  EXPECT_EQ(bytes, std::vector<int>(1024, 1));
  EXPECT_EQ(values, std::vector<int>(1024, 1));
}

TEST(WeightImage, RefusesWhatDoesNotFit) {
  const Combination c{WeightFormat::nvfp4, ScaleLayout::tensor, Kind::none};
  OwnedWeight w(c, {16, 32, 1, false, false, 0}, 1);
  EXPECT_EQ(cuda::image_bytes(w.weight) % 256, 0u);
  EXPECT_EQ(cuda::image_bytes(w.weight), 64u * 64 / 2 + 64 * 4 + 64 * 4);
  w.weight.cols = 40;
  EXPECT_ANY_THROW(static_cast<void>(cuda::image_bytes(w.weight)));
  w.weight.cols = 32;
  w.weight.scales.clear();
  EXPECT_ANY_THROW(static_cast<void>(cuda::image_bytes(w.weight)));
}

}  // namespace
}  // namespace nibble::test
