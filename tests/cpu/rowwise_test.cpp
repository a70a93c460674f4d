// Row-wise ops against the text of their contracts by bytes, and against golden float64 results.
#include "backends/cpu/ops/rowwise.h"

#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>

#include <cmath>
#include <functional>
#include <random>

#include "core/numerics/reduce.h"
#include "tests/cpu/linear_reference.h"
#include "tests/support/buffers.h"
#include "tests/support/golden.h"

namespace nibble {
namespace {

using cpu::Isa;
using cpu::Parallel;
using test::Guarded;

const oneapi::tbb::global_control kThreads(oneapi::tbb::global_control::max_allowed_parallelism, 8);

constexpr std::int64_t kRows = 5;
constexpr std::int64_t kCols[] = {1, 15, 16, 31, 33, 64, 100, 128, 512, 513, 1000, 5120, 9001};

std::vector<float> random_rows(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& v : x) v = normal(random);
  const float edges[] = {0.0f, -0.0f, 100.0f, -100.0f, 1e-40f, -3e38f};
  for (std::size_t i = 0; i < 6 && i * 7 < x.size(); ++i) x[i * 7] = edges[i];
  return x;
}

// op(isa, parallel, out) and value(row, column), on every instruction set and thread count.
void check(std::int64_t rows, std::int64_t cols,
           const std::function<void(Isa, Parallel&, cpu::Out)>& op,
           const std::function<float(std::int64_t, std::int64_t)>& value) {
  std::vector<float> want;
  for (std::int64_t i = 0; i < rows * cols; ++i) want.push_back(value(i / cols, i % cols));
  for (const Isa isa : cpu::available_isas()) {
    for (const int threads : {1, 2, 7}) {
      Parallel parallel(threads);
      Guarded y(rows, cols);
      op(isa, parallel, {y.data(), y.stride()});
      ASSERT_EQ(y.damage(), "");
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < cols; ++c) {
          const float e = want[static_cast<std::size_t>(r * cols + c)];
          ASSERT_TRUE(test::same_bits(y.at(r, c), e))
              << cpu::isa_name(isa) << " cols " << cols << " [" << r << ", " << c << "] "
              << y.at(r, c) << " != " << e;
        }
      }
    }
  }
}

TEST(Rowwise, Elementwise) {
  for (const std::int64_t cols : kCols) {
    const std::int64_t stride = cols + 2;
    const auto a = random_rows(kRows * stride, 1), b = random_rows(kRows * stride, 2);
    const cpu::In x{a.data(), stride}, z{b.data(), stride};
    const auto at = [&](const std::vector<float>& v, std::int64_t r, std::int64_t c) {
      return v[static_cast<std::size_t>(r * stride + c)];
    };
    check(
        kRows, cols,
        [&](Isa isa, Parallel& p, cpu::Out y) { cpu::add(isa, p, kRows, cols, x, z, y); },
        [&](std::int64_t r, std::int64_t c) { return at(a, r, c) + at(b, r, c); });
    check(
        kRows, cols,
        [&](Isa isa, Parallel& p, cpu::Out y) { cpu::swiglu(isa, p, kRows, cols, x, z, y); },
        [&](std::int64_t r, std::int64_t c) { return num::silu(at(a, r, c)) * at(b, r, c); });
  }
}

TEST(Rowwise, OutputMayBeTheInput) {
  const auto a = random_rows(300, 1), b = random_rows(300, 2);
  for (const Isa isa : cpu::available_isas()) {
    Parallel one(1);
    auto y = a;
    cpu::add(isa, one, 1, 300, {y.data(), 300}, {b.data(), 300}, {y.data(), 300});
    for (std::size_t i = 0; i < 300; ++i) ASSERT_TRUE(test::same_bits(y[i], a[i] + b[i]));
    y = a;
    cpu::swiglu(isa, one, 1, 300, {b.data(), 300}, {y.data(), 300}, {y.data(), 300});
    for (std::size_t i = 0; i < 300; ++i)
      ASSERT_TRUE(test::same_bits(y[i], num::silu(b[i]) * a[i]));
    y = a;
    std::vector<float> apart(300);
    cpu::rms_norm(isa, one, 1, 300, {a.data(), 300}, b.data(), 1e-6f, {apart.data(), 300});
    cpu::rms_norm(isa, one, 1, 300, {y.data(), 300}, b.data(), 1e-6f, {y.data(), 300});
    for (std::size_t i = 0; i < 300; ++i) ASSERT_TRUE(test::same_bits(y[i], apart[i]));
  }
}

TEST(Rowwise, SigmoidGate) {
  for (const std::int64_t dim : {1, 20, 64, 256}) {
    constexpr std::int64_t kHeads = 3;
    const std::int64_t cols = kHeads * dim, gate_stride = 2 * cols + 7;
    const auto x = random_rows(kRows * cols, 1), gate = random_rows(kRows * gate_stride, 2);
    // as the query projection lays it: per head dim query columns, then dim gate columns
    check(
        kRows, cols,
        [&](Isa isa, Parallel& p, cpu::Out y) {
          cpu::sigmoid_gate(isa, p, kRows, kHeads, dim, {x.data(), cols},
                            {gate.data() + dim, gate_stride}, 2 * dim, y);
        },
        [&](std::int64_t r, std::int64_t c) {
          const float g =
              gate[static_cast<std::size_t>(r * gate_stride + c / dim * 2 * dim + dim + c % dim)];
          return x[static_cast<std::size_t>(r * cols + c)] * num::sigmoid(g);
        });
  }
}

float norm_factor(const float* x, std::int64_t n, float eps) {
  return num::rsqrt(num::tree_sum_squares(x, n) * static_cast<float>(1.0 / static_cast<double>(n)) +
                    eps);
}

TEST(Rowwise, Norms) {
  for (const std::int64_t cols : kCols) {
    auto x = random_rows(kRows * cols, 3);
    for (float& v : x) v = std::abs(v) > 1e30f ? 1.0f : v;  // their squares would be infinite
    const auto w = random_rows(cols, 4), z = random_rows(kRows * 2 * cols, 5);
    std::vector<float> factors;
    for (std::int64_t r = 0; r < kRows; ++r)
      factors.push_back(norm_factor(x.data() + r * cols, cols, 1e-6f));
    check(
        kRows, cols,
        [&](Isa isa, Parallel& p, cpu::Out y) {
          cpu::rms_norm(isa, p, kRows, cols, {x.data(), cols}, w.data(), 1e-6f, y);
        },
        [&](std::int64_t r, std::int64_t c) {
          return x[static_cast<std::size_t>(r * cols + c)] * factors[static_cast<std::size_t>(r)] *
                 w[static_cast<std::size_t>(c)];
        });
    if (cols > 1024) continue;
    // two heads: rows 2r and 2r + 1 of x
    check(
        2, 2 * cols,
        [&](Isa isa, Parallel& p, cpu::Out y) {
          cpu::gated_rms_norm(isa, p, 2, 2, cols, {x.data(), 2 * cols}, {z.data(), 2 * cols},
                              w.data(), 1e-6f, y);
        },
        [&](std::int64_t r, std::int64_t c) {
          const float n = x[static_cast<std::size_t>(r * 2 * cols + c)] *
                          factors[static_cast<std::size_t>(r * 2 + c / cols)] *
                          w[static_cast<std::size_t>(c % cols)];
          return n * num::silu(z[static_cast<std::size_t>(r * 2 * cols + c)]);
        });
  }
}

TEST(Rowwise, EmbedAndGather) {
  struct Case {
    WeightFormat format;
    ScaleLayout layout;
  };
  const std::int32_t tokens[] = {0, 149, 16, 15, 149, 128, 77};
  for (const Case& c :
       {Case{WeightFormat::f32, ScaleLayout::none}, Case{WeightFormat::f16, ScaleLayout::none},
        Case{WeightFormat::bf16, ScaleLayout::none}, Case{WeightFormat::fp8_e4m3, ScaleLayout::row},
        Case{WeightFormat::fp8_e4m3, ScaleLayout::block128},
        Case{WeightFormat::nvfp4, ScaleLayout::tensor}}) {
    const test::RandomWeight w(c.format, c.layout, 150, 272, 6);
    const auto ops = test::operands(w.weight);
    for (const auto order : {cpu::NibbleOrder::bytes, cpu::NibbleOrder::words}) {
      Parallel two(2);
      const test::Aligned arena(cpu::packed_bytes(w.weight));
      const auto packed = cpu::pack(w.weight, arena.data, two, order);
      check(
          7, 272, [&](Isa, Parallel& p, cpu::Out y) { cpu::embed(p, packed, tokens, 7, y); },
          [&](std::int64_t r, std::int64_t k) {
            const std::int64_t n = tokens[r];
            const float scale = c.layout == ScaleLayout::block128
                                    ? test::block_scale(w.weight, n, k)
                                    : test::alpha(w.weight, n);
            return ops[static_cast<std::size_t>(n * 272 + k)] * scale;
          });
    }
  }
  const auto x = random_rows(9 * 70, 7);
  const std::int32_t rows[] = {8, 0, 3, 3};
  check(
      4, 65,
      [&](Isa, Parallel& p, cpu::Out y) {
        cpu::gather_rows(p, {x.data(), 70}, rows, 4, 65, y);
      },
      [&](std::int64_t r, std::int64_t c) {
        return x[static_cast<std::size_t>(rows[r] * 70 + c)];
      });
}

TEST(Rowwise, GoldenNorms) {
  const test::Golden g(NIBBLE_TEST_DATA "/golden/ops.safetensors");
  const auto x = g.f32("rms.x"), gx = g.f32("gated.x"), gz = g.f32("gated.z"),
             gw = g.f32("gated.weight");
  auto w = g.f32("rms.weight");
  for (float& v : w) v = static_cast<float>(1.0 + static_cast<double>(v));  // zero-centred
  const auto rms = g.f64("rms.out"), gated = g.f64("gated.out");
  double worst_rms = 0, worst_gated = 0;
  for (const Isa isa : cpu::available_isas()) {
    Parallel one(1);
    Guarded y(5, 256, 0), z(6, 128, 0);
    cpu::rms_norm(isa, one, 5, 256, {x.data(), 256}, w.data(), 1e-6f, {y.data(), 256});
    cpu::gated_rms_norm(isa, one, 6, 4, 32, {gx.data(), 128}, {gz.data(), 128}, gw.data(), 1e-6f,
                        {z.data(), 128});
    for (std::size_t i = 0; i < rms.size(); ++i) {
      worst_rms = std::max(worst_rms, std::abs(y.data()[i] - rms[i]) / std::abs(rms[i]));
    }
    for (std::size_t i = 0; i < gated.size(); ++i) {
      worst_gated = std::max(worst_gated, std::abs(z.data()[i] - gated[i]) / std::abs(gated[i]));
    }
  }
  RecordProperty("rms", std::to_string(worst_rms * 0x1p24) + " x 2^-24");
  RecordProperty("gated", std::to_string(worst_gated * 0x1p24) + " x 2^-24");
  EXPECT_LE(worst_rms, 6 * 0x1p-24);
  EXPECT_LE(worst_gated, 8 * 0x1p-24);
}

}  // namespace
}  // namespace nibble
