// Ops that pack what they make on the device against the CPU's, by bytes, and rows behind the step's.
#include <gtest/gtest.h>

#include <type_traits>

#include "backends/cpu/ops/pack.h"
#include "backends/cuda/ops/pack.h"
#include "tests/cases/rows_cases.h"
#include "tests/cuda/device_buffer.h"
#include "tests/cuda/step_on_device.h"
#include "tests/support/buffers.h"

namespace nibble {
namespace {

using test::DeviceArray;
using test::DeviceMatrix;
using test::Kind;
using test::RowsCase;
using test::RowsInput;
using test::RowsOp;
using Half = std::uint16_t;  // bf16

constexpr std::int64_t kBehind = 3;  // rows of the class beyond those of the step

template <class E>
std::vector<E> encoded(const std::vector<float>& values, std::int64_t cols) {
  std::vector<E> all;
  for (const float v : values) {
    if constexpr (std::is_same_v<E, float>) {
      all.push_back(v);
    } else {
      all.push_back(num::float_to_bf16(v));
    }
  }
  all.resize(all.size() + static_cast<std::size_t>(kBehind * cols));
  return all;
}
float decoded(float v) {
  return v;
}
float decoded(Half v) {
  return num::bf16_to_float(v);
}

class CudaPack : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { NIBBLE_NEEDS_DEVICE(); }

  // E: y's type.
  template <class E>
  void check(RowsOp op, std::int64_t heads, std::int64_t group, const ActivationFormat& format, std::int64_t gap,
             bool keep, bool long_rows = false) {
    constexpr bool bf16 = std::is_same_v<E, Half>;
    const std::int64_t rows = GetParam(), cols = heads * group, all = rows + kBehind;
    if (cols > 4000 && rows > 17 && !long_rows) return;
    const bool fp4 = format.kind == Kind::nvfp4_static, none = format.kind == Kind::fp8_tensor_static;
    const std::int64_t code_cols = fp4 ? cols / 2 : cols,
                       scale_cols = fp4                              ? cols / 16
                                    : format.kind == Kind::fp8_token ? 1
                                                                     : (cols + 127) / 128;
    const bool norm = op == RowsOp::rms_norm;
    RowsCase c{op, rows, heads, group, bf16 && !norm, bf16, bf16};
    const RowsInput in(c);
    const std::string what = c.key() + " " + activation_format_name(format.kind) + " gap " + std::to_string(gap) +
                             (keep ? " with y" : "");

    std::vector<std::uint8_t> codes(static_cast<std::size_t>(all * code_cols), 0xFF),
        bytes(static_cast<std::size_t>(all * scale_cols), 0xFF);
    std::vector<float> floats(bytes.size()), y(static_cast<std::size_t>(all * cols));
    std::memset(floats.data(), 0xFF, floats.size() * sizeof(float));
    cpu::PackArgs want;
    want.to = {rows, cols, format, nullptr, 0, codes.data(), code_cols,
               fp4 ? static_cast<void*>(bytes.data()) : floats.data(), scale_cols};
    want.operand = bf16 ? DType::bf16 : DType::f32;
    want.y = {y.data(), cols};
    const cpu::In x{in.x.data(), cols}, z{in.z.data(), cols};

    std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows));
    const test::StepOnDevice step(test::plain_batch(tokens));
    cuda::Launch launch;
    launch.step = step.device();
    launch.max_rows = all;
    launch.max_outputs = kBehind;
    launch.max_ranges = 1;
    launch.multiprocessors = rows > 3 ? 1 : 132;  // blocks that stay have many rows, or one
    DeviceMatrix<E> to_y(all, cols, gap), of_z(encoded<E>(in.z, cols), all, cols, gap);
    DeviceMatrix<std::uint8_t> to_codes(all, code_cols, gap), to_bytes(all, scale_cols, 1);
    DeviceMatrix<float> to_floats(all, scale_cols, 1);
    DeviceArray<float> weight(in.weight);
    const cuda::PackArgs pack{format, to_codes.view(),
                              none  ? cuda::View{}
                              : fp4 ? to_bytes.view()
                                    : to_floats.view()};
    cuda::View out = to_y.view();
    if (!keep) out.data = nullptr;
    const auto run = [&](auto element) {
      using In = decltype(element);
      DeviceMatrix<In> of_x(encoded<In>(in.x, cols), all, cols, gap);
      const float* const w = in.weight.data();
      if (norm) {
        cpu::rms_norm_pack(isa_, parallel_, x, w, test::kNormEps, want);
        cuda::rms_norm_pack(launch, {of_x.view(), weight.data(), test::kNormEps, out}, pack);
      } else if (op == RowsOp::gated_rms_norm) {
        cpu::gated_rms_norm_pack(isa_, parallel_, group, x, z, w, test::kNormEps, want);
        cuda::gated_rms_norm_pack(launch,
                                  {of_x.view(), of_z.view(), weight.data(), static_cast<std::int32_t>(group),
                                   test::kNormEps, out},
                                  pack);
      } else {
        cpu::swiglu_pack(isa_, parallel_, x, z, want);
        cuda::swiglu_pack(launch, {of_x.view(), of_z.view(), out}, pack);
      }
      test::finish_device();
    };
    if (norm) {
      run(float{});
    } else {
      run(E{});
    }
    ASSERT_EQ(to_codes.damage() + to_bytes.damage() + to_floats.damage() + to_y.damage(), "") << what;
    const std::vector<std::uint8_t> got = to_codes.download();
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], codes[i]) << what << " code " << i / static_cast<std::size_t>(code_cols) << ", "
                                  << i % static_cast<std::size_t>(code_cols);
    }
    ASSERT_EQ(to_bytes.download(), bytes) << what;
    const std::vector<float> scales = to_floats.download();
    for (std::size_t i = 0; i < scales.size(); ++i) {
      ASSERT_TRUE(test::same_bits(scales[i], floats[i])) << what << " scale " << i;
    }
    const std::vector<E> made = to_y.download();
    for (std::size_t i = 0; i < made.size(); ++i) {
      const float have = decoded(made[i]);
      const bool written = keep && static_cast<std::int64_t>(i) < rows * cols;
      ASSERT_TRUE(written ? test::same_bits(have, y[i]) : have != have) << what << " y " << i << ": " << have;
    }
  }

  void each(RowsOp op, std::int64_t heads, std::int64_t group) {
    for (const ActivationFormat& format : test::kQuantizeFormats) {
      if (format.kind == Kind::nvfp4_static && heads * group % 16 != 0) continue;
      for (const std::int64_t gap : {0, 3, 4}) {
        check<float>(op, heads, group, format, gap, gap == 0);
        check<Half>(op, heads, group, format, gap, gap != 4);
        check<Half>(op, heads, group, format, gap, false);
      }
      check<Half>(op, heads, group, format, 8, true);
    }
  }

  cpu::Parallel parallel_{1};
  cpu::Isa isa_ = cpu::available_isas().front();
};

TEST_P(CudaPack, RmsNorm) {
  for (const std::int64_t cols : {1, 16, 77, 144, 512, 513, 1040, 2048, 5104, 5120, 6208, 13008}) {
    each(RowsOp::rms_norm, 1, cols);
  }
}

TEST_P(CudaPack, GatedRmsNorm) {
  for (const std::int64_t group : {1, 3, 16, 77, 128, 512, 528}) {
    for (const std::int64_t heads : {1, 9, 16, 48}) {
      if (group >= 512 && heads > 9) continue;
      each(RowsOp::gated_rms_norm, heads, group);
    }
  }
}

TEST_P(CudaPack, SwiGlu) {
  // 24,592 and 33,008: too long a row to wait in shared memory, or as a cluster's, for its scale
  for (const std::int64_t cols : {1, 8, 16, 77, 144, 513, 1028, 1040, 5120, 17408, 24592, 33008}) {
    each(RowsOp::swiglu, 1, cols);
  }
}

// The shapes that models have, rows enough for two eights a thread.
TEST_P(CudaPack, LongRows) {
  if (GetParam() != 64) GTEST_SKIP() << "of 64 rows only";
  for (const ActivationFormat& format : test::kQuantizeFormats) {
    for (const bool keep : {false, true}) {
      check<Half>(RowsOp::rms_norm, 1, 5120, format, 0, keep, true);
      check<Half>(RowsOp::gated_rms_norm, 48, 128, format, 0, keep, true);
      check<Half>(RowsOp::swiglu, 1, 17408, format, 0, keep, true);
    }
    check<Half>(RowsOp::swiglu, 1, 17392, format, 8, true, true);  // 1,087 threads of 16 columns
  }
}

INSTANTIATE_TEST_SUITE_P(T, CudaPack, testing::Values(0, 1, 2, 3, 5, 17, 64, 129), testing::PrintToStringParamName());

}  // namespace
}  // namespace nibble
