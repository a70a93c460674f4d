// Ops that pack what they make: the bytes of the two ops one after the other.
#include "backends/cpu/ops/pack.h"

#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>

#include <cstring>
#include <functional>

#include "nibble/error.h"
#include "tests/cases/rows_cases.h"
#include "tests/support/buffers.h"
#include "tests/support/sanitized.h"

namespace nibble {
namespace {

using cpu::Isa;
using cpu::Parallel;
using test::Guarded;
using test::Kind;

const oneapi::tbb::global_control kThreads(oneapi::tbb::global_control::max_allowed_parallelism, 8);

constexpr std::int64_t kRows[] = {0, 1, 2, 3, 5, 17, 64, 129};
constexpr float kEps = test::kNormEps;

// Codes and scales with a canary behind each row.
struct Packed {
  std::int64_t code_cols, scale_cols;
  std::vector<std::uint8_t> codes, bytes;
  std::vector<float> floats;
  cpu::QuantizeArgs args;

  Packed(const ActivationFormat& f, std::int64_t rows, std::int64_t cols)
      : code_cols(f.kind == Kind::nvfp4_static ? cols / 2 : cols),
        scale_cols(f.kind == Kind::nvfp4_static        ? cols / 16
                   : f.kind == Kind::fp8_token         ? 1
                   : f.kind == Kind::fp8_tensor_static ? 0
                                                       : (cols + 127) / 128),
        codes(static_cast<std::size_t>(rows * (code_cols + 3)), 0xEE),
        bytes(static_cast<std::size_t>(rows * (scale_cols + 1)), 0xEE),
        floats(bytes.size(), -1.0f) {
    args.rows = rows;
    args.cols = cols;
    args.format = f;
    args.codes = codes.data();
    args.code_stride = code_cols + 3;
    args.scales = f.kind == Kind::nvfp4_static ? static_cast<void*>(bytes.data()) : floats.data();
    args.scale_stride = scale_cols + 1;
  }
  Packed(const Packed&) = delete;
  void expect(const Packed& other, const std::string& what) const {
    ASSERT_EQ(codes, other.codes) << what;
    ASSERT_EQ(bytes, other.bytes) << what;
    ASSERT_EQ(floats.size(), other.floats.size());
    for (std::size_t i = 0; i < floats.size(); ++i) {
      ASSERT_TRUE(test::same_bits(floats[i], other.floats[i])) << what << " scale " << i;
    }
  }
};

std::vector<float> inputs(std::int64_t rows, std::int64_t stride, bool edges, DType operand) {
  if (rows == 0) return {};
  std::vector<float> x = test::rows_of_every_sort(rows, stride);
  if (edges) test::put_edges(x, stride);
  if (operand == DType::bf16) cpu::round_bf16(Isa::portable, x.data(), rows * stride);
  return x;
}

using First = std::function<void(Isa, Parallel&, cpu::Out)>;
using Both = std::function<void(Isa, Parallel&, const cpu::PackArgs&)>;

void check(std::int64_t rows, std::int64_t cols, const ActivationFormat& format, DType operand,
           const First& first, const Both& both, const std::string& what) {
  for (const Isa isa : cpu::available_isas()) {
    Parallel one(1);
    Packed want(format, rows, cols);
    Guarded y(rows, cols);
    std::vector<std::int32_t> exponents(static_cast<std::size_t>(rows) + 1, 99);
    const cpu::Out out{y.data(), y.stride()};
    first(isa, one, out);
    if (operand == DType::bf16) cpu::round_bf16(isa, one, rows, cols, out);
    if (operand == DType::f16) cpu::round_f16(isa, one, rows, cols, out, exponents.data());
    want.args.x = y.data();
    want.args.x_stride = y.stride();
    cpu::quantize(isa, one, want.args);
    for (const int threads : {1, 3}) {
      for (const bool keep : {false, true}) {
        const std::string which = what + (keep ? " with y, " : ", ") + cpu::isa_name(isa) + ", threads " +
                                  std::to_string(threads);
        Parallel parallel(threads);
        const auto size = static_cast<std::size_t>(cpu::pack_workspace_bytes(cols, threads));
        const test::Aligned workspace(size + 64);
        std::memset(workspace.data + size, 0x5A, 64);
        Packed got(format, rows, cols);
        Guarded kept(rows, cols);
        std::vector<std::int32_t> to(exponents.size(), 99);
        cpu::PackArgs args{got.args, operand, {nullptr, 0}, nullptr, workspace.data};
        if (keep) {
          args.y = {kept.data(), kept.stride()};
          args.exponents = operand == DType::f16 ? to.data() : nullptr;
        }
        both(isa, parallel, args);
        got.expect(want, which);
        ASSERT_EQ(kept.damage(), "") << which;
        for (int i = 0; i < 64; ++i) ASSERT_EQ(workspace.data[size + static_cast<std::size_t>(i)], std::byte{0x5A});
        if (!keep) continue;
        ASSERT_EQ(to, exponents) << which;
        for (std::int64_t i = 0; i < rows * cols; ++i) {
          ASSERT_TRUE(test::same_bits(kept.at(i / cols, i % cols), y.at(i / cols, i % cols)))
              << which << " y[" << i / cols << ", " << i % cols << "]";
        }
      }
    }
  }
}

std::string label(const char* op, std::int64_t rows, std::int64_t cols, const ActivationFormat& f, DType operand) {
  return std::string(op) + " T " + std::to_string(rows) + " cols " + std::to_string(cols) + " " +
         dtype_name(operand) + " " + activation_format_name(f.kind) + " " + std::to_string(f.scale);
}

class Pack : public testing::TestWithParam<DType> {
 protected:
  // f(rows, edges, format): every number of rows on the narrow ones, few on the wide; with sanitizers few on all.
  template <class F>
  void each(std::int64_t cols, F f) {
    for (const std::int64_t rows : kRows) {
      if ((cols > 1000 || test::kSanitized) && rows > 5) continue;
      for (const ActivationFormat& format : test::kQuantizeFormats) {
        if (format.kind == Kind::nvfp4_static && cols % 16 != 0) continue;
        f(rows, rows % 2 == 1, format);
      }
    }
  }
};

TEST_P(Pack, RmsNorm) {
  for (const std::int64_t cols : {1, 16, 77, 144, 512, 513, 5120}) {
    const std::int64_t stride = cols + 5;
    const std::vector<float> w = inputs(1, cols, false, DType::f32);
    each(cols, [&](std::int64_t rows, bool edges, const ActivationFormat& format) {
      const auto x = inputs(rows, stride, edges, DType::f32);
      const cpu::In in{x.data(), stride};
      check(
          rows, cols, format, GetParam(),
          [&](Isa isa, Parallel& p, cpu::Out y) { cpu::rms_norm(isa, p, rows, cols, in, w.data(), kEps, y); },
          [&](Isa isa, Parallel& p, const cpu::PackArgs& a) {
            cpu::rms_norm_pack(isa, p, in, w.data(), kEps, a);
          },
          label("rms_norm", rows, cols, format, GetParam()));
    });
  }
}

TEST_P(Pack, GatedRmsNorm) {
  for (const std::int64_t group : {1, 16, 24, 77, 128, 513}) {
    for (const std::int64_t heads : {1, 6, 48}) {
      if (group != 16 && group != 128 && heads > 6) continue;
      const std::int64_t cols = heads * group, stride = cols + 2;
      const std::vector<float> w = inputs(1, group, false, DType::f32);
      each(cols, [&](std::int64_t rows, bool edges, const ActivationFormat& format) {
        const auto x = inputs(rows, stride, edges, GetParam()), z = inputs(rows, stride, !edges, GetParam());
        const cpu::In in{x.data(), stride}, gate{z.data(), stride};
        check(
            rows, cols, format, GetParam(),
            [&](Isa isa, Parallel& p, cpu::Out y) {
              cpu::gated_rms_norm(isa, p, rows, heads, group, in, gate, w.data(), kEps, y);
            },
            [&](Isa isa, Parallel& p, const cpu::PackArgs& a) {
              cpu::gated_rms_norm_pack(isa, p, group, in, gate, w.data(), kEps, a);
            },
            label("gated_rms_norm", rows, cols, format, GetParam()));
      });
    }
  }
}

TEST_P(Pack, SwiGlu) {
  for (const std::int64_t cols : {1, 16, 77, 144, 512, 513, 4112, 9001}) {
    const std::int64_t stride = cols + 1;
    each(cols, [&](std::int64_t rows, bool edges, const ActivationFormat& format) {
      const auto a = inputs(rows, stride, edges, GetParam()), b = inputs(rows, stride, !edges, GetParam());
      const cpu::In gate{a.data(), stride}, up{b.data(), stride};
      check(
          rows, cols, format, GetParam(),
          [&](Isa isa, Parallel& p, cpu::Out y) { cpu::swiglu(isa, p, rows, cols, gate, up, y); },
          [&](Isa isa, Parallel& p, const cpu::PackArgs& to) { cpu::swiglu_pack(isa, p, gate, up, to); },
          label("swiglu", rows, cols, format, GetParam()));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Operand, Pack, testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& tested) { return std::string(dtype_name(tested.param)); });

TEST(PackRefuses, WhatTheFormatCannotHold) {
  Parallel one(1);
  cpu::PackArgs args;
  args.to.rows = 1;
  args.to.cols = 24;
  args.to.format = {Kind::nvfp4_static, 1.0f};
  EXPECT_THROW(cpu::swiglu_pack(Isa::portable, one, {nullptr, 24}, {nullptr, 24}, args), Error);
  args.to.format = {};
  EXPECT_THROW(cpu::swiglu_pack(Isa::portable, one, {nullptr, 24}, {nullptr, 24}, args), Error);
}

}  // namespace
}  // namespace nibble
