// op_digests_test.cu: writes digests of what this card computes (tests/support/op_digests.h) into the folder that
// NIBBLE_DIGESTS_OUT names; without it each test skips. tests/cpu/*_digests_test.cpp compare the CPU's with them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "backends/cuda/ops/f16_rows.h"
#include "backends/cuda/ops/rowwise.h"
#include "tests/cases/linear_digests.h"
#include "tests/cases/rows_cases.h"
#include "tests/cases/sequence_digests.h"
#include "tests/cuda/linear_run.h"
#include "tests/cuda/sequence_worlds.h"

namespace nibble::test {
namespace {

// A file that has its name only when it is whole.
class Written {
 public:
  explicit Written(const std::string& file)
      : path_(std::filesystem::path(std::getenv("NIBBLE_DIGESTS_OUT")) / ("digest-" + file)) {}
  void add(const std::string& of_case, std::uint64_t digest) { lines_ += digest_line(of_case, digest); }
  void finish() {
    const std::filesystem::path part = path_.string() + ".part";
    std::ofstream(part, std::ios::binary) << lines_;
    std::filesystem::rename(part, path_);
  }

 private:
  std::filesystem::path path_;
  std::string lines_;
};

class OpDigests : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("NIBBLE_DIGESTS_OUT") == nullptr) GTEST_SKIP() << "NIBBLE_DIGESTS_OUT names no folder";
    NIBBLE_NEEDS_DEVICE();
  }
};

void write_linear(const LinearProfile& p) {
  Written out(p.file());
  for (const Combination& c : p.table()) {
    each_linear_case(p.path, c, [&](const LinearCase& l) {
      const OwnedWeight w = weight_of(l);
      const OnDevice packed(w.weight, staging_for(w.weight, l.index), p.path);
      OpDigest digest;
      digest.add(run_linear(l.sizes.bf16_output, packed.image, format_of(c.kind), input_of(l, p.path), l.sizes.t,
                            l.sizes.gap, p.path));
      out.add(l.key(), digest.value());
    });
  }
  if (!testing::Test::HasFailure()) out.finish();
}
TEST_F(OpDigests, LinearSm70) { write_linear(kLinearProfiles[0]); }
TEST_F(OpDigests, LinearSm90) { write_linear(kLinearProfiles[1]); }
TEST_F(OpDigests, LinearSm120) { write_linear(kLinearProfiles[2]); }

TEST_F(OpDigests, Sequences) {
  Written out(kSequenceDigests);
  for (const SequenceCase& c : sequence_cases()) out.add(c.key(), sequence_digest<DeltaWorld, AttentionWorld>(c));
  if (!HasFailure()) out.finish();
}

// Rows of bf16 or of float32.
struct Rows16or32 {
  Rows16or32(const std::vector<float>& values, std::int64_t rows, std::int64_t cols, bool bf16, std::int64_t gap)
      : Rows16or32(rows, cols, bf16, gap) {
    if (bf16) {
      narrow_->upload(encoded<std::uint16_t>(values));
    } else {
      wide_->upload(values);
    }
  }
  Rows16or32(std::int64_t rows, std::int64_t cols, bool bf16, std::int64_t gap) {
    if (bf16) {
      narrow_ = std::make_unique<DeviceMatrix<std::uint16_t>>(rows, cols, gap);
    } else {
      wide_ = std::make_unique<DeviceMatrix<float>>(rows, cols, gap);
    }
  }
  cuda::View view(Rows rows = Rows::tokens) { return narrow_ ? narrow_->view(rows) : wide_->view(rows); }
  std::vector<float> download() const {
    EXPECT_EQ(narrow_ ? narrow_->damage() : wide_->damage(), "");
    return narrow_ ? decoded(narrow_->download()) : wide_->download();
  }

 private:
  std::unique_ptr<DeviceMatrix<std::uint16_t>> narrow_;
  std::unique_ptr<DeviceMatrix<float>> wide_;
};

cuda::Launch launch_of(const StepOnDevice& step, std::int64_t rows) {
  cuda::Launch to;
  to.step = step.device();
  to.max_rows = rows;
  to.max_outputs = step.host().outputs;
  to.max_ranges = 1;
  to.multiprocessors = multiprocessors();
  return to;
}

std::uint64_t quantized(const cuda::Launch& to, const RowsCase& c, const cuda::View& x) {
  const bool nvfp4 = c.format.kind == Kind::nvfp4_static, none = c.format.kind == Kind::fp8_tensor_static;
  const std::int64_t cols = c.cols();
  DeviceMatrix<std::uint8_t> codes(c.rows, nvfp4 ? cols / 2 : cols), bytes(nvfp4 ? c.rows : 0, cols / 16);
  DeviceMatrix<float> scales(nvfp4 || none ? 0 : c.rows, c.format.kind == Kind::fp8_token ? 1 : (cols + 127) / 128);
  cuda::quantize(to, {x, c.format, codes.view(), nvfp4 ? bytes.view() : none ? cuda::View{} : scales.view()});
  finish_device();
  OpDigest digest;
  digest.add(codes.download());
  digest.add(bytes.download());
  digest.add(scales.download());
  return digest.value();
}

std::uint64_t to_f16_and_back(const cuda::Launch& to, const RowsCase& c, const cuda::View& x) {
  DeviceMatrix<std::uint16_t> half(c.rows, c.cols(), 2);
  DeviceArray<std::int32_t> exponents(static_cast<std::size_t>(c.rows));
  DeviceMatrix<float> back(c.rows, c.cols(), 1);
  cuda::View of_half = half.view();
  of_half.dtype = DType::f16;
  of_half.exponents = exponents.data();
  cuda::narrow_rows(to, {of_half, x}, nullptr);
  cuda::widen_rows(to, {of_half, back.view()}, nullptr);
  finish_device();
  OpDigest digest;
  digest.add(back.download());
  for (const std::int32_t e : exponents.download()) digest.add(std::vector<float>{static_cast<float>(e)});
  return digest.value();
}

std::uint64_t rows_digest(const RowsCase& c) {
  const RowsInput in(c);
  const std::int64_t cols = c.cols(), width = c.width, gap = width % 2 == 1 ? 3 : 4;
  Batch batch = plain_batch(std::vector<std::int32_t>(static_cast<std::size_t>(c.rows)));
  if (c.op == RowsOp::gather_rows) batch.output_rows = in.picked;
  const StepOnDevice step(batch);
  const cuda::Launch to = launch_of(step, c.rows);
  Rows16or32 x(in.x, c.rows, cols, c.x16, gap), z(in.z, c.rows, c.z_cols(), c.z16, gap);
  const bool gathers = c.op == RowsOp::gather_rows;
  Rows16or32 y(gathers ? static_cast<std::int64_t>(in.picked.size()) : c.rows, cols, c.y16, gap);
  const DeviceArray<float> weight(in.weight);
  const auto head = static_cast<std::int32_t>(width);
  switch (c.op) {
    case RowsOp::rms_norm:
      cuda::rms_norm(to, {x.view(), weight.data(), kNormEps, y.view()});
      break;
    case RowsOp::gated_rms_norm:
      cuda::gated_rms_norm(to, {x.view(), z.view(), weight.data(), head, kNormEps, y.view()});
      break;
    case RowsOp::add:
      cuda::add(to, {x.view(), z.view(), y.view()});
      break;
    case RowsOp::swiglu:
      cuda::swiglu(to, {x.view(), z.view(), y.view()});
      break;
    case RowsOp::sigmoid_gate: {  // the gate lies behind the queries of its head
      cuda::View gate = z.view();
      gate.data += static_cast<std::size_t>(width) * (c.z16 ? 2 : 4);
      gate.cols -= head;
      cuda::sigmoid_gate(to, {x.view(), gate, static_cast<std::int32_t>(c.heads), head, 2 * width, y.view()});
      break;
    }
    case RowsOp::gather_rows:
      cuda::gather_rows(to, {x.view(), y.view(Rows::outputs)});
      break;
    case RowsOp::quantize:
      return quantized(to, c, x.view());
    case RowsOp::f16_rows:
      return to_f16_and_back(to, c, x.view());
  }
  finish_device();
  OpDigest digest;
  digest.add(y.download());
  return digest.value();
}

TEST_F(OpDigests, RowWise) {
  Written out(kRowsDigests);
  for (const RowsOp op : kAllRowsOps) {
    for (const RowsCase& c : rows_cases(op)) out.add(c.key(), rows_digest(c));
  }
  if (!HasFailure()) out.finish();
}

}  // namespace
}  // namespace nibble::test
