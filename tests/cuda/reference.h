// reference.h: Linear of profile sm90 written straight from core/numerics/matrix_order.h, for tests. Shares no
// code with the emulated instruction: significands live in doubles, which hold every term exactly.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "core/base/bytes.h"
#include "core/checkpoint/weight.h"
#include "core/numerics/codecs.h"
#include "core/numerics/matrix_order.h"

namespace nibble::test {

namespace fused {

inline double power_of_two(int e) {  // |e| < 1023
  return num::bit_cast<double>(static_cast<std::uint64_t>(e + 1023) << 52);
}

// Exponent of a finite value that is not zero; subnormals have the format's lowest.
inline int exponent_of(float v) {
  const int field = static_cast<int>(num::bit_cast<std::uint32_t>(v) >> 23 & 255u);
  return (field > 1 ? field : 1) - 127;
}

// a, b: 16 bf16 values, widened.
inline float dot16(const float* a, const float* b, float c) {
  constexpr int kFraction = 25;
  bool special = !std::isfinite(c);
  for (int i = 0; i < 16; ++i) special = special || !std::isfinite(a[i]) || !std::isfinite(b[i]);
  if (special) {
    // In double no product overflows, so its own rules for inf and NaN decide.
    double sum = static_cast<double>(c);
    for (int i = 0; i < 16; ++i) {
      const double product = static_cast<double>(a[i]) * static_cast<double>(b[i]);
      if (!std::isfinite(product)) sum += product;
    }
    return static_cast<float>(sum);
  }
  int top = std::numeric_limits<int>::min();
  for (int i = 0; i < 16; ++i) {
    if (a[i] != 0 && b[i] != 0) top = std::max(top, exponent_of(a[i]) + exponent_of(b[i]));
  }
  if (c != 0) top = std::max(top, exponent_of(c));
  if (top == std::numeric_limits<int>::min()) return 0.0f;
  const double scale = power_of_two(kFraction - top);
  double sum = std::trunc(static_cast<double>(c) * scale);
  for (int i = 0; i < 16; ++i) {
    sum += std::trunc(static_cast<double>(a[i]) * static_cast<double>(b[i]) * scale);
  }
  if (sum == 0) return 0.0f;
  // 24 bits, then the subnormal grid, both toward zero.
  const std::uint64_t bits = num::bit_cast<std::uint64_t>(sum) & ~((std::uint64_t{1} << 29) - 1);
  double v = num::bit_cast<double>(bits) * power_of_two(top - kFraction);
  if (std::fabs(v) < 0x1p-126) v = std::trunc(v * 0x1p149) * 0x1p-149;
  if (std::fabs(v) >= 0x1p128) return v > 0 ? INFINITY : -INFINITY;
  return v == 0 ? 0.0f : static_cast<float>(v);  // never -0
}

}  // namespace fused

// Rows of x as a backend's buffers hold them: `values` for unquantised x, else codes and scales.
struct LinearInput {
  std::int64_t rows = 0;
  std::vector<std::uint16_t> values;     // bf16 [rows, K]
  std::vector<std::uint8_t> codes;       // [rows, K / 2] or [rows, K]
  std::vector<std::uint8_t> byte_scales;  // nvfp4_static [rows, K / 16]
  std::vector<float> scales;             // fp8_token [rows], group128 [rows, ceil(K / 128)]
};

inline float weight_operand(const Weight& w, std::int64_t n, std::int64_t k) {
  const auto i = static_cast<std::size_t>(n * w.cols + k);
  const auto rounded = [](float v) { return num::bf16_to_float(num::float_to_bf16(v)); };
  switch (w.format) {
    case WeightFormat::f32:
      return rounded(load_le<float>(w.codes, i * 4));
    case WeightFormat::f16:
      return rounded(num::f16_to_float(load_le<std::uint16_t>(w.codes, i * 2)));
    case WeightFormat::bf16:
      return num::bf16_to_float(load_le<std::uint16_t>(w.codes, i * 2));
    case WeightFormat::fp8_e4m3:
      return num::e4m3_to_float(load_le<std::uint8_t>(w.codes, i));
    case WeightFormat::nvfp4:
      break;
  }
  const auto two = load_le<std::uint8_t>(w.codes, i / 2);
  return num::mul(num::e2m1_to_float(static_cast<std::uint8_t>(i % 2 == 0 ? two & 15 : two >> 4)),
                  num::e4m3_to_float(load_le<std::uint8_t>(w.block_scales, i / 16)));
}

inline float input_operand(const LinearInput& x, ActivationFormat::Kind kind, std::int64_t cols,
                           std::int64_t row, std::int64_t k) {
  const auto i = static_cast<std::size_t>(row * cols + k);
  if (kind == ActivationFormat::Kind::none) return num::bf16_to_float(x.values[i]);
  if (kind != ActivationFormat::Kind::nvfp4_static) return num::e4m3_to_float(x.codes[i]);
  const unsigned two = x.codes[i / 2];
  return num::mul(num::e2m1_to_float(static_cast<std::uint8_t>(i % 2 == 0 ? two & 15 : two >> 4)),
                  num::e4m3_to_float(x.byte_scales[i / 16]));
}

inline float mirror_output(const Weight& w, const ActivationFormat& format, const LinearInput& x,
                           const float* weight_row, const float* x_row, std::int64_t n,
                           std::int64_t row) {
  using Kind = ActivationFormat::Kind;
  const bool block128 = w.scale_layout == ScaleLayout::block128;
  const bool group128 = format.kind == Kind::fp8_token_group128;
  const num::Segments cut = num::linear_segments(w.rows, w.cols, block128 || group128);
  const std::int64_t across = (w.cols + 127) / 128;
  float total = 0;
  for (std::int32_t s = 0; s < cut.count; ++s) {
    const std::int64_t begin = std::int64_t{s} * cut.length;
    const std::int64_t end = std::min<std::int64_t>(begin + cut.length, w.cols);
    float sum = 0;
    for (std::int64_t k = begin; k < end; k += 16) sum = fused::dot16(x_row + k, weight_row + k, sum);
    if (group128) sum = num::mul(sum, x.scales[static_cast<std::size_t>(row * across + s)]);
    total = block128 ? num::fma(sum, w.scales[static_cast<std::size_t>(n / 128 * across + s)], total)
                     : num::add(total, sum);
  }
  float alpha = 1, scale = 1;
  if (w.scale_layout == ScaleLayout::tensor) alpha = w.scales[0];
  if (w.scale_layout == ScaleLayout::row) alpha = w.scales[static_cast<std::size_t>(n)];
  if (format.kind == Kind::nvfp4_static || format.kind == Kind::fp8_tensor_static) scale = format.scale;
  if (format.kind == Kind::fp8_token) scale = x.scales[static_cast<std::size_t>(row)];
  return num::mul(num::mul(total, alpha), scale);
}

// y[row, i] of the weight rows columns[i], before it is rounded to y's type.
inline void mirror_linear(const Weight& w, const ActivationFormat& format, const LinearInput& x,
                          const std::vector<std::int64_t>& columns, std::vector<float>& y) {
  const std::int64_t padded = (w.cols + 15) / 16 * 16;
  const auto widen = [&](auto operand, std::int64_t row, float* out) {
    for (std::int64_t k = 0; k < padded; ++k) out[k] = k < w.cols ? operand(row, k) : 0.0f;
  };
  std::vector<float> inputs(static_cast<std::size_t>(x.rows * padded));
  for (std::int64_t r = 0; r < x.rows; ++r) {
    widen([&](std::int64_t row, std::int64_t k) {
            return input_operand(x, format.kind, w.cols, row, k);
          }, r, inputs.data() + r * padded);
  }
  y.assign(static_cast<std::size_t>(x.rows) * columns.size(), 0.0f);
  const std::size_t workers = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, 16);
  const auto work = [&](std::size_t first) {
    std::vector<float> weight_row(static_cast<std::size_t>(padded));
    for (std::size_t i = first; i < columns.size(); i += workers) {
      widen([&](std::int64_t n, std::int64_t k) { return weight_operand(w, n, k); }, columns[i],
            weight_row.data());
      for (std::int64_t r = 0; r < x.rows; ++r) {
        y[static_cast<std::size_t>(r) * columns.size() + i] = mirror_output(
            w, format, x, weight_row.data(), inputs.data() + r * padded, columns[i], r);
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < workers; ++i) threads.emplace_back(work, i);
  work(0);
  for (std::thread& t : threads) t.join();
}

}  // namespace nibble::test
