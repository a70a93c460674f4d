// Quantize and Linear on quantised activations: by bytes against the text of the contracts, the
// golden codes and scales, golden dequantisation in both checkpoint conventions, golden W4A4.
#include "backends/cpu/ops/quantize.h"

#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>

#include <algorithm>

#include "backends/cpu/ops/rowwise.h"
#include "nibble/error.h"
#include "tests/cpu/linear_reference.h"
#include "tests/support/buffers.h"
#include "tests/support/golden.h"

namespace nibble {
namespace {

using cpu::Isa;
using cpu::Parallel;
using Kind = ActivationFormat::Kind;
using test::Guarded;

const oneapi::tbb::global_control kThreads(oneapi::tbb::global_control::max_allowed_parallelism, 8);

struct Quantised {
  ActivationFormat format;
  std::int64_t rows, cols, code_cols, scale_cols;
  std::vector<std::uint8_t> codes, byte_scales;
  std::vector<float> float_scales;

  Quantised(ActivationFormat f, std::int64_t rows_, std::int64_t cols_)
      : format(f), rows(rows_), cols(cols_) {
    code_cols = f.kind == Kind::nvfp4_static ? cols / 2 : cols;
    scale_cols = f.kind == Kind::nvfp4_static        ? cols / 16
                 : f.kind == Kind::fp8_token         ? 1
                 : f.kind == Kind::fp8_tensor_static ? 0
                                                     : (cols + 127) / 128;
    codes.assign(static_cast<std::size_t>(rows * (code_cols + 1)), 0xEE);  // one canary byte a row
    byte_scales.assign(static_cast<std::size_t>(rows * scale_cols), 0xEE);
    float_scales.assign(static_cast<std::size_t>(rows * scale_cols), -1.0f);
  }
  void* scales() {
    return format.kind == Kind::nvfp4_static ? static_cast<void*>(byte_scales.data())
                                             : float_scales.data();
  }
  void run(Isa isa, Parallel& parallel, const float* x, std::int64_t x_stride) {
    cpu::quantize(
        isa, parallel,
        {rows, cols, format, x, x_stride, codes.data(), code_cols + 1, scales(), scale_cols});
  }
  float operand(std::int64_t t, std::int64_t k) const {
    if (format.kind != Kind::nvfp4_static) {
      return num::e4m3_to_float(codes[static_cast<std::size_t>(t * (code_cols + 1) + k)]);
    }
    const std::uint8_t two = codes[static_cast<std::size_t>(t * (code_cols + 1) + k / 2)];
    return num::e2m1_to_float(k % 2 == 0 ? two & 15 : two >> 4) *
           num::e4m3_to_float(byte_scales[static_cast<std::size_t>(t * scale_cols + k / 16)]);
  }
};

float amax(const float* x, std::int64_t n) {
  float most = 0;
  for (std::int64_t i = 0; i < n; ++i) most = std::abs(x[i]) > most ? std::abs(x[i]) : most;
  return most;
}

// The contract's text, one value at a time.
Quantised reference(ActivationFormat format, std::int64_t rows, std::int64_t cols, const float* x,
                    std::int64_t stride) {
  Quantised q(format, rows, cols);
  for (std::int64_t t = 0; t < rows; ++t) {
    const float* row = x + t * stride;
    std::uint8_t* codes = q.codes.data() + t * (q.code_cols + 1);
    for (std::int64_t k = 0; k < cols; ++k) {
      if (format.kind == Kind::nvfp4_static) {
        const std::uint8_t s =
            num::float_to_e4m3(amax(row + k / 16 * 16, 16) / 6.0f / format.scale);
        q.byte_scales[static_cast<std::size_t>(t * q.scale_cols + k / 16)] = s;
        const int code =
            s == 0 ? 0 : num::float_to_e2m1(row[k] / (num::e4m3_to_float(s) * format.scale));
        codes[k / 2] = static_cast<std::uint8_t>(k % 2 == 0 ? code : codes[k / 2] | code << 4);
        continue;
      }
      float scale = format.scale;
      if (format.kind != Kind::fp8_tensor_static) {
        const std::int64_t group = format.kind == Kind::fp8_token ? cols : 128,
                           first = k / group * group;
        const float most = amax(row + first, std::min(group, cols - first));
        scale = most == 0 ? 1.0f : most / 448.0f;
        q.float_scales[static_cast<std::size_t>(t * q.scale_cols + k / group)] = scale;
      }
      codes[k] = num::float_to_e4m3(row[k] / scale);
    }
  }
  return q;
}

std::vector<float> rows_with_edges(std::int64_t rows, std::int64_t stride) {
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(rows * stride));
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = normal(random) * std::exp2(static_cast<float>(i / 64 % 24) - 12);
  for (std::int64_t k = 0; k < stride; ++k)
    x[static_cast<std::size_t>(k)] = k % 2 ? -0.0f : 0.0f;  // a row of zeros
  for (std::int64_t k = 0; k < 16; ++k)
    x[static_cast<std::size_t>(stride + k)] = -1e-30f;  // scale 0
  const float edges[] = {std::numeric_limits<float>::infinity(),
                         std::numeric_limits<float>::quiet_NaN(), 3e38f, -1e-42f};
  for (std::size_t i = 0; i < 4; ++i) x[static_cast<std::size_t>(2 * stride) + i * 20] = edges[i];
  return x;
}

constexpr ActivationFormat kKinds[] = {{Kind::nvfp4_static, 0.0123f},
                                       {Kind::fp8_tensor_static, 0.03f},
                                       {Kind::fp8_token, 0},
                                       {Kind::fp8_token_group128, 0}};

TEST(Quantize, EqualsTheContractByBytes) {
  for (const ActivationFormat& format : kKinds) {
    for (const std::int64_t cols : {16, 128, 144, 320, 131}) {
      if (format.kind == Kind::nvfp4_static && cols % 16 != 0) continue;
      constexpr std::int64_t kRows = 37;
      const std::int64_t stride = std::max<std::int64_t>(cols, 80) + 3;
      const auto x = rows_with_edges(kRows, stride);
      const Quantised want = reference(format, kRows, cols, x.data(), stride);
      for (const Isa isa : cpu::available_isas()) {
        for (const int threads : {1, 2, 7}) {
          Parallel parallel(threads);
          Quantised got(format, kRows, cols);
          got.run(isa, parallel, x.data(), stride);
          ASSERT_EQ(got.codes, want.codes) << activation_format_name(format.kind) << " " << cols;
          ASSERT_EQ(got.byte_scales, want.byte_scales)
              << activation_format_name(format.kind) << " " << cols;
          for (std::size_t i = 0; i < want.float_scales.size(); ++i) {
            ASSERT_TRUE(test::same_bits(got.float_scales[i], want.float_scales[i])) << i;
          }
        }
      }
    }
  }
}

TEST(Quantize, RefusesWhatTheFormatCannotHold) {
  Parallel one(1);
  EXPECT_THROW(cpu::quantize(Isa::portable, one, {1, 24, {Kind::nvfp4_static, 1.0f}}), Error);
  EXPECT_THROW(cpu::quantize(Isa::portable, one, {1, 16, {}}), Error);
}

// Linear over quantised rows, more than one block of operands, every pair of weight and activation
// format.
TEST(Quantize, LinearEqualsTheContractByBytes) {
  struct Case {
    WeightFormat format;
    ScaleLayout layout;
  };
  for (const Case& c : {Case{WeightFormat::nvfp4, ScaleLayout::tensor},
                        Case{WeightFormat::fp8_e4m3, ScaleLayout::row},
                        Case{WeightFormat::fp8_e4m3, ScaleLayout::block128},
                        Case{WeightFormat::bf16, ScaleLayout::none}}) {
    for (const ActivationFormat& format : kKinds) {
      for (const std::int64_t rows : {1, 3, 9, 590}) {
        const std::int64_t n = rows > 100 ? 17 : 149, k = rows > 100 ? 144 : 304;
        const test::RandomWeight w(c.format, c.layout, n, k, 4);
        const auto ops = test::operands(w.weight);
        std::mt19937 random(5);
        std::normal_distribution<float> normal;
        std::vector<float> x(static_cast<std::size_t>(rows * k));
        for (float& v : x) v = normal(random);
        Quantised q = reference(format, rows, k, x.data(), k);
        std::vector<float> want;
        for (std::int64_t t = 0; t < rows; ++t) {
          std::vector<float> row;
          for (std::int64_t i = 0; i < k; ++i) row.push_back(q.operand(t, i));
          const float* scales = q.float_scales.data() + t * q.scale_cols;
          const bool group = format.kind == Kind::fp8_token_group128;
          const float post = group                            ? 1.0f
                             : format.kind == Kind::fp8_token ? scales[0]
                                                              : format.scale;
          for (std::int64_t i = 0; i < n; ++i) {
            want.push_back(
                test::reference_dot(w.weight, ops, i, row.data(), group ? scales : nullptr, post));
          }
        }
        for (const Isa isa : cpu::available_isas()) {
          for (const int threads : {1, 7}) {
            Parallel parallel(threads);
            const test::Aligned arena(cpu::packed_bytes(w.weight));
            const auto packed = cpu::pack(w.weight, arena.data, parallel, cpu::nibble_order(isa));
            const std::int64_t size = cpu::linear_workspace_bytes(rows, k);
            const test::Aligned workspace(static_cast<std::uint64_t>(size) + 64);
            std::memset(workspace.data + size, 0x5A, 64);
            Guarded y(rows, n);
            cpu::LinearArgs a;
            a.weight = &packed;
            a.rows = rows;
            a.format = format;
            a.codes = q.codes.data();
            a.x_stride = q.code_cols + 1;
            a.scales = q.scales();
            a.scale_stride = q.scale_cols;
            a.y = y.data();
            a.y_stride = y.stride();
            a.workspace = workspace.data;
            cpu::linear(isa, parallel, a);
            ASSERT_EQ(y.damage(), "");
            for (int i = 0; i < 64; ++i) ASSERT_EQ(workspace.data[size + i], std::byte{0x5A});
            for (std::int64_t t = 0; t < rows; ++t) {
              for (std::int64_t i = 0; i < n; ++i) {
                ASSERT_TRUE(test::same_bits(y.at(t, i), want[static_cast<std::size_t>(t * n + i)]))
                    << activation_format_name(format.kind) << " T " << rows << " y[" << t << ", "
                    << i << "]";
              }
            }
          }
        }
      }
    }
  }
}

TEST(Quantize, GoldenActivations) {
  const test::Golden g(NIBBLE_TEST_DATA "/golden/nvfp4.safetensors");
  const auto x = g.f32("act.x"), dequant = g.f32("act.dequant");
  const ActivationFormat format{Kind::nvfp4_static, g.f32("act.input_scale")[0]};
  EXPECT_EQ(format.scale, 1.0f / g.f32("act.input_global_scale")[0]);
  for (const Isa isa : cpu::available_isas()) {
    Parallel one(1);
    Quantised q(format, 4, 128);
    q.run(isa, one, x.data(), 128);
    EXPECT_EQ(q.byte_scales, g.u8("act.scale_bytes"));
    const auto packed = g.u8("act.packed");
    for (std::int64_t t = 0; t < 4; ++t) {
      for (std::int64_t i = 0; i < 64; ++i) {
        ASSERT_EQ(q.codes[static_cast<std::size_t>(t * 65 + i)],
                  packed[static_cast<std::size_t>(t * 64 + i)]);
      }
      for (std::int64_t k = 0; k < 128; ++k) {
        ASSERT_EQ(q.operand(t, k) * format.scale, dequant[static_cast<std::size_t>(t * 128 + k)]);
      }
    }
  }
}

// Weights come out of the panels exactly, in both conventions of a checkpoint.
TEST(Quantize, GoldenDequantisation) {
  const test::Golden g(NIBBLE_TEST_DATA "/golden/nvfp4.safetensors");
  const auto codes = g.u8("deq.packed"), scales = g.u8("deq.scale_bytes");
  const auto want = g.f32("deq.out");
  Parallel one(1);
  for (const float scale :
       {g.f32("deq.weight_scale_2")[0], 1.0f / g.f32("deq.weight_global_scale")[0]}) {
    for (const auto order : {cpu::NibbleOrder::bytes, cpu::NibbleOrder::words}) {
      Weight w;
      w.name = "deq";
      w.format = WeightFormat::nvfp4;
      w.rows = 6;
      w.cols = 128;
      w.codes = std::as_bytes(std::span(codes));
      w.block_scales = std::as_bytes(std::span(scales));
      w.scale_layout = ScaleLayout::tensor;
      w.scales = {scale};
      const test::Aligned arena(cpu::packed_bytes(w));
      const auto packed = cpu::pack(w, arena.data, one, order);
      const std::int32_t rows[] = {0, 1, 2, 3, 4, 5};
      Guarded y(6, 128);
      cpu::embed(one, packed, rows, 6, {y.data(), y.stride()});
      EXPECT_EQ(y.damage(), "");
      for (std::int64_t n = 0; n < 6; ++n) {
        for (std::int64_t k = 0; k < 128; ++k) {
          ASSERT_TRUE(test::same_bits(y.at(n, k), want[static_cast<std::size_t>(n * 128 + k)]))
              << n << " " << k;
        }
      }
    }
  }
}

TEST(Quantize, GoldenW4a4) {
  const test::Golden g(NIBBLE_TEST_DATA "/golden/nvfp4.safetensors");
  const auto x = g.f32("act.x");
  const auto codes = g.u8("gemm.w_packed"), scales = g.u8("gemm.w_scale_bytes");
  const auto want = g.f64("gemm.out_w4a4");
  const ActivationFormat format{Kind::nvfp4_static, g.f32("act.input_scale")[0]};
  Weight w;
  w.name = "gemm";
  w.format = WeightFormat::nvfp4;
  w.rows = 24;
  w.cols = 128;
  w.codes = std::as_bytes(std::span(codes));
  w.block_scales = std::as_bytes(std::span(scales));
  w.scale_layout = ScaleLayout::tensor;
  w.scales = g.f32("gemm.weight_scale_2");
  const auto ops = test::operands(w);
  Parallel one(1);
  const test::Aligned arena(cpu::packed_bytes(w)),
      workspace(static_cast<std::uint64_t>(cpu::linear_workspace_bytes(4, 128)));
  double worst = 0;
  for (const Isa isa : cpu::available_isas()) {
    const auto packed = cpu::pack(w, arena.data, one, cpu::nibble_order(isa));
    Quantised q(format, 4, 128);
    q.run(isa, one, x.data(), 128);
    Guarded y(4, 24);
    cpu::LinearArgs a{&packed, 4,        format,     nullptr,       65, q.codes.data(), q.scales(),
                      8,       y.data(), y.stride(), workspace.data};
    cpu::linear(isa, one, a);
    for (std::int64_t t = 0; t < 4; ++t) {
      std::vector<float> row;
      for (std::int64_t k = 0; k < 128; ++k) row.push_back(q.operand(t, k) * format.scale);
      for (std::int64_t n = 0; n < 24; ++n) {
        double magnitude;
        test::exact_dot(w, ops, n, row.data(), &magnitude);
        worst = std::max(
            worst, std::abs(y.at(t, n) - want[static_cast<std::size_t>(t * 24 + n)]) / magnitude);
      }
    }
  }
  RecordProperty("relative", std::to_string(worst * 0x1p24) + " x 2^-24");
  EXPECT_LE(worst, 4 * 0x1p-24);
}

}  // namespace
}  // namespace nibble
