// The CPU's row-wise ops against digests of what a card computed for the same cases (tests/data/digests/ops.rows.txt).
// All of them; with sanitizers those of one row.
#include <gtest/gtest.h>

#include <filesystem>

#include "backends/cpu/mirror.h"
#include "backends/cpu/ops/quantize.h"
#include "backends/cpu/ops/rowwise.h"
#include "tests/cases/rows_cases.h"
#include "tests/support/op_digests.h"
#include "tests/support/sanitized.h"

namespace nibble::test {
namespace {

constexpr std::int64_t kMostRows = kSanitized ? 1 : 257;

DigestFile file() { return DigestFile(std::filesystem::path(NIBBLE_TEST_DATA) / "digests" / kRowsDigests); }

std::uint64_t digest_of(const RowsCase& c) {
  const RowsInput in(c);
  const std::int64_t cols = c.cols(), width = c.width;
  const cpu::Isa isa = cpu::available_isas().front();
  cpu::Parallel one(1);
  const cpu::In x{in.x.data(), cols}, z{in.z.data(), c.z_cols()};
  std::int64_t rows = c.rows;
  std::vector<float> written(in.x.size());
  const cpu::Out y{written.data(), cols};
  OpDigest digest;
  switch (c.op) {
    case RowsOp::rms_norm:
      cpu::rms_norm(isa, one, rows, cols, x, in.weight.data(), kNormEps, y);
      break;
    case RowsOp::gated_rms_norm:
      cpu::gated_rms_norm(isa, one, rows, c.heads, width, x, z, in.weight.data(), kNormEps, y);
      break;
    case RowsOp::add:
      cpu::add(isa, one, rows, cols, x, z, y);
      break;
    case RowsOp::swiglu:
      cpu::swiglu(isa, one, rows, cols, x, z, y);
      break;
    case RowsOp::sigmoid_gate:  // the gate lies behind the queries of its head
      cpu::sigmoid_gate(isa, one, rows, c.heads, width, x, {in.z.data() + width, c.z_cols()}, 2 * width, y);
      break;
    case RowsOp::gather_rows:
      rows = static_cast<std::int64_t>(in.picked.size());
      cpu::gather_rows(one, x, in.picked.data(), rows, cols, y);
      written.resize(static_cast<std::size_t>(rows * cols));
      break;
    case RowsOp::quantize: {
      const bool nvfp4 = c.format.kind == Kind::nvfp4_static, none = c.format.kind == Kind::fp8_tensor_static;
      const std::int64_t code_cols = nvfp4 ? cols / 2 : cols,
                         scale_cols = c.format.kind == Kind::fp8_token ? 1 : (cols + 127) / 128;
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * code_cols)),
          bytes(static_cast<std::size_t>(nvfp4 ? rows * cols / 16 : 0));
      std::vector<float> scales(static_cast<std::size_t>(nvfp4 || none ? 0 : rows * scale_cols));
      cpu::quantize(isa, one, {rows, cols, c.format, in.x.data(), cols, codes.data(), code_cols,
                               nvfp4 ? static_cast<void*>(bytes.data()) : scales.data(),
                               nvfp4 ? cols / 16 : scale_cols});
      digest.add(codes);
      digest.add(bytes);
      digest.add(scales);
      return digest.value();
    }
    case RowsOp::f16_rows: {
      written = in.x;
      std::vector<std::int32_t> exponents(static_cast<std::size_t>(rows));
      cpu::round_f16(isa, one, rows, cols, y, exponents.data());
      digest.add(written);
      for (const std::int32_t e : exponents) digest.add(std::vector<float>{static_cast<float>(e)});
      return digest.value();
    }
  }
  if (c.y16) cpu::round_bf16(isa, one, rows, cols, y);
  digest.add(written);
  return digest.value();
}

class RowsDigests : public testing::TestWithParam<RowsOp> {};

TEST_P(RowsDigests, CpuReproducesTheCard) {
  const DigestFile known = file();
  int computed = 0;
  for (const RowsCase& c : rows_cases(GetParam())) {
    if (c.rows > kMostRows) continue;
    ++computed;
    EXPECT_EQ(known.fault(c.key(), digest_of(c)), "");
  }
  RecordProperty("cases", computed);
  EXPECT_GE(computed, 6);
}

INSTANTIATE_TEST_SUITE_P(All, RowsDigests, testing::ValuesIn(kAllRowsOps),
                         [](const auto& tested) { return std::string(kRowsOps[static_cast<int>(tested.param)]); });

TEST(RowsDigestFile, HasEveryCaseAndNoOther) {
  std::vector<std::string> table;
  for (const RowsOp op : kAllRowsOps) {
    for (const RowsCase& c : rows_cases(op)) table.push_back(c.key());
  }
  for (const std::string& fault : file().faults(table)) ADD_FAILURE() << fault;
}

}  // namespace
}  // namespace nibble::test
