// AddRmsNorm on the device, packed and not, against the CPU's Add and RmsNorm by bytes: rows in eights, which one launch
// serves, and others, which two do; the sum beside its input and over it; rows behind the step's.
#include <gtest/gtest.h>

#include "backends/cpu/ops/pack.h"
#include "backends/cuda/ops/eights.h"
#include "tests/cases/rows_cases.h"
#include "tests/cuda/device_buffer.h"
#include "tests/cuda/step_on_device.h"
#include "tests/support/buffers.h"

namespace nibble {
namespace {

using test::DeviceArray;
using test::DeviceMatrix;
using test::Kind;
using Half = std::uint16_t;  // bf16

constexpr std::int64_t kBehind = 3;  // rows of the class beyond those of the step
constexpr float kEps = test::kNormEps;

std::size_t count_of(std::int64_t n) { return static_cast<std::size_t>(n); }
float decoded(float v) { return v; }
float decoded(Half v) { return num::bf16_to_float(v); }

// Inputs of a case and what the CPU makes of them.
struct Sum {
  std::int64_t rows, cols;
  std::vector<float> a, b, weight, sum;

  Sum(std::int64_t rows_, std::int64_t cols_)
      : rows(rows_), cols(cols_), a(rows_ == 0 ? std::vector<float>() : test::rows_of_every_sort(rows_, cols_)), b(a.size()), sum(a.size()) {
    test::Hash random{77};
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = i % 5 == 0 ? num::mul(a[i], 0x1p-3f) : random.value(-12, 8);
    for (std::int64_t c = 0; c < cols; ++c) weight.push_back(random.value(-2, 2));
    for (std::size_t i = 0; i < a.size(); ++i) sum[i] = num::add(a[i], b[i]);
  }
  cpu::In rows_of_sum() const { return {sum.data(), cols}; }
  std::vector<float> with_rows_behind(const std::vector<float>& of) const {
    std::vector<float> all = of;
    all.resize(count_of((rows + kBehind) * cols));
    return all;
  }
};

class CudaAddNorm : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { NIBBLE_NEEDS_DEVICE(); }

  // E: y's type; K none: no codes. multiprocessors: blocks that stay have many rows, or one.
  template <class E>
  void check(std::int64_t cols, const ActivationFormat* format, std::int64_t gap, bool over, bool keep, int multiprocessors) {
    const std::int64_t rows = GetParam(), all = rows + kBehind;
    const Sum in(rows, cols);
    const std::string what = "cols " + std::to_string(cols) + " gap " + std::to_string(gap) + (over ? " over a" : "") +
                             (format == nullptr ? "" : std::string(" ") + activation_format_name(format->kind)) +
                             (keep ? "" : " without y") + " on " + std::to_string(multiprocessors);
    std::vector<std::int32_t> tokens(count_of(rows));
    const test::StepOnDevice step(test::plain_batch(tokens));
    cuda::Launch to;
    to.step = step.device();
    to.max_rows = all;
    to.multiprocessors = multiprocessors;
    DeviceMatrix<float> a(in.with_rows_behind(in.a), all, cols, gap), b(in.with_rows_behind(in.b), all, cols, gap),
        apart(all, cols, gap);
    DeviceMatrix<E> y(all, cols, gap);
    DeviceMatrix<float>& sum = over ? a : apart;
    const DeviceArray<float> weight(in.weight);
    cuda::View out = y.view();
    if (!keep) out.data = nullptr;
    const cuda::AddRmsNormArgs args{{a.view(), b.view(), sum.view()}, {sum.view(), weight.data(), kEps, out}};

    std::vector<float> want(count_of(all * cols));
    if (format == nullptr) {
      cpu::rms_norm(isa_, parallel_, rows, cols, in.rows_of_sum(), in.weight.data(), kEps, {want.data(), cols});
      cuda::add_rms_norm(to, args);
      test::finish_device();
    } else {
      codes(in, *format, to, args, want, gap, what);
    }
    ASSERT_EQ(a.damage() + b.damage() + apart.damage() + y.damage(), "") << what;
    const std::vector<float> sums = sum.download();
    const std::vector<E> made = y.download();
    for (std::int64_t i = 0; i < all * cols; ++i) {
      const float have = sums[count_of(i)], got = decoded(made[count_of(i)]);
      if (i < rows * cols) {
        ASSERT_TRUE(test::same_bits(have, in.sum[count_of(i)])) << what << " sum " << i << ": " << have << ", expected " << in.sum[count_of(i)];
      } else {
        ASSERT_TRUE(over ? have == 0.0f : have != have) << what << " wrote a sum behind the step's rows, " << i;
      }
      if (keep && i < rows * cols) {
        float expected = want[count_of(i)];
        if constexpr (std::is_same_v<E, Half>) expected = num::bf16_to_float(num::float_to_bf16(expected));
        ASSERT_TRUE(test::same_bits(got, expected)) << what << " y " << i << ": " << got << ", expected " << expected;
      } else {
        ASSERT_TRUE(got != got) << what << " wrote y, " << i;
      }
    }
  }

  void codes(const Sum& in, const ActivationFormat& format, const cuda::Launch& to, const cuda::AddRmsNormArgs& args,
             std::vector<float>& y, std::int64_t gap, const std::string& what) {
    const std::int64_t cols = in.cols, all = in.rows + kBehind;
    const bool fp4 = format.kind == Kind::nvfp4_static, none = format.kind == Kind::fp8_tensor_static;
    const std::int64_t code_cols = fp4 ? cols / 2 : cols,
                       scale_cols = fp4 ? cols / 16 : format.kind == Kind::fp8_token ? 1 : (cols + 127) / 128;
    std::vector<std::uint8_t> want(count_of(all * code_cols), 0xFF), bytes(count_of(all * scale_cols), 0xFF);
    std::vector<float> floats(bytes.size());
    std::memset(floats.data(), 0xFF, floats.size() * sizeof(float));
    cpu::PackArgs pack;
    pack.to = {in.rows, cols, format, nullptr, 0, want.data(), code_cols,
               fp4 ? static_cast<void*>(bytes.data()) : floats.data(), scale_cols};
    pack.operand = args.norm.y.dtype;
    pack.y = {y.data(), cols};
    cpu::rms_norm_pack(isa_, parallel_, in.rows_of_sum(), in.weight.data(), kEps, pack);

    DeviceMatrix<std::uint8_t> to_codes(all, code_cols, gap), to_bytes(all, scale_cols, 1);
    DeviceMatrix<float> to_floats(all, scale_cols, 1);
    cuda::add_rms_norm_pack(to, args,
                            {format, to_codes.view(), none ? cuda::View{} : fp4 ? to_bytes.view() : to_floats.view()});
    test::finish_device();
    ASSERT_EQ(to_codes.damage() + to_bytes.damage() + to_floats.damage(), "") << what;
    const std::vector<std::uint8_t> got = to_codes.download();
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want[i]) << what << " code " << i;
    ASSERT_EQ(to_bytes.download(), bytes) << what;
    const std::vector<float> scales = to_floats.download();
    for (std::size_t i = 0; i < scales.size(); ++i) ASSERT_TRUE(test::same_bits(scales[i], floats[i])) << what << " scale " << i;
  }

  cpu::Parallel parallel_{1};
  cpu::Isa isa_ = cpu::available_isas().front();
};

// One launch, and for other shapes two.
constexpr std::int64_t kCols[] = {528, 1024, 2048, 2064, 4096, 5104, 5120, 1, 77, 512, 513, 1032, 6208};

TEST_P(CudaAddNorm, EqualsTheTwo) {
  for (const std::int64_t cols : kCols) {
    for (const bool over : {false, true}) {
      for (const int multiprocessors : {1, 132}) {
        check<Half>(cols, nullptr, 0, over, true, multiprocessors);
        check<float>(cols, nullptr, 0, over, true, multiprocessors);
      }
      check<Half>(cols, nullptr, 8, over, true, 1);
      check<float>(cols, nullptr, 3, over, true, 1);
    }
  }
}

TEST_P(CudaAddNorm, EqualsTheThreeWhereItPacks) {
  for (const std::int64_t cols : {528, 1024, 5104, 5120, 144, 1040, 6208}) {
    for (const ActivationFormat& format : test::kQuantizeFormats) {
      for (const int multiprocessors : {1, 132}) {
        check<Half>(cols, &format, 0, multiprocessors == 1, multiprocessors == 1, multiprocessors);
      }
      check<Half>(cols, &format, 8, true, false, 1);
    }
    check<float>(cols, &test::kQuantizeFormats[1], 0, true, true, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(T, CudaAddNorm, testing::Values(0, 1, 2, 5, 16, 17, 64, 133), testing::PrintToStringParamName());

TEST(CudaAddNormServes, TheShapesOfModels) {
  NIBBLE_NEEDS_DEVICE();
  std::byte* const at = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 20);
  const auto view = [&](DType type, std::int32_t cols) { return cuda::View{at, type, Rows::tokens, cols, cols, nullptr}; };
  const auto* const weight = reinterpret_cast<const float*>(at);
  cuda::Launch to;
  to.max_rows = 4;
  const auto ask = [&](DType y, std::int32_t cols, const float* w, const cuda::PackArgs* pack = nullptr) {
    const cuda::View x = view(DType::f32, cols);
    return cuda::add_rms_norm_eights(to, {{x, x, x}, {x, w, kEps, view(y, cols)}}, pack, cuda::Serve::ask);
  };
  for (const std::int32_t cols : {1024, 2048, 5120}) {
    EXPECT_EQ(ask(DType::bf16, cols, weight), nullptr) << cols;
    EXPECT_EQ(ask(DType::f32, cols, weight), nullptr) << cols;
  }
  EXPECT_NE(ask(DType::bf16, 512, weight), nullptr);
  EXPECT_NE(ask(DType::bf16, 8192, weight), nullptr);
  EXPECT_NE(ask(DType::bf16, 1032, weight), nullptr);
  EXPECT_NE(ask(DType::bf16, 1024, weight + 1), nullptr);
  const cuda::PackArgs token{{Kind::fp8_token, 0}, view(DType::u8, 1024), view(DType::f32, 1)};
  EXPECT_EQ(ask(DType::bf16, 1024, weight, &token), nullptr);
  EXPECT_NE(ask(DType::f32, 1024, weight, &token), nullptr);
}

}  // namespace
}  // namespace nibble
