// reference.h: Linear of profiles sm90, sm120 and sm70 written straight from docs/numerics.md, for tests. Shares
// no code with the emulated instructions: significands live in doubles, which hold every term exactly.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "backends/cuda/arch_path.h"
#include "core/numerics/fused_dot.h"
#include "core/base/bytes.h"
#include "core/checkpoint/weight.h"
#include "core/numerics/codecs.h"
#include "core/numerics/matrix_order.h"
#include "tests/cases/linear_cases.h"

namespace nibble::test {

namespace fused {

inline double power_of_two(int e) {  // |e| < 1023
  return num::bit_cast<double>(static_cast<std::uint64_t>(e + 1023) << 52);
}

// Exponent of a finite value that is not zero; subnormals have the format's lowest.
inline int exponent_of(float v, int lowest = -126) {
  const int field = static_cast<int>(num::bit_cast<std::uint32_t>(v) >> 23 & 255u);
  return std::max((field > 1 ? field : 1) - 127, lowest);
}

// 24 bits of sum * 2^by, then the subnormal grid, both toward zero.
inline float truncated(double sum, int by) {
  if (sum == 0) return 0.0f;
  const std::uint64_t bits = num::bit_cast<std::uint64_t>(sum) & ~((std::uint64_t{1} << 29) - 1);
  double v = num::bit_cast<double>(bits) * power_of_two(by);
  if (std::fabs(v) < 0x1p-126) v = std::trunc(v * 0x1p149) * 0x1p-149;
  if (std::fabs(v) >= 0x1p128) return v > 0 ? INFINITY : -INFINITY;
  return v == 0 ? 0.0f : static_cast<float>(v);  // never -0
}

// a, b: 16-bit values, widened; kLowest: of their format's exponents.
template <int kTerms, int kFraction, int kLowest>
float dot(const float* a, const float* b, float c) {
  bool special = !std::isfinite(c);
  for (int i = 0; i < kTerms; ++i) special = special || !std::isfinite(a[i]) || !std::isfinite(b[i]);
  if (special) {
    // In double no product overflows, so its own rules for inf and NaN decide.
    double sum = static_cast<double>(c);
    for (int i = 0; i < kTerms; ++i) {
      const double product = static_cast<double>(a[i]) * static_cast<double>(b[i]);
      if (!std::isfinite(product)) sum += product;
    }
    return static_cast<float>(sum);
  }
  int top = std::numeric_limits<int>::min();
  for (int i = 0; i < kTerms; ++i) {
    if (a[i] == 0 || b[i] == 0) continue;
    top = std::max(top, exponent_of(a[i], kLowest) + exponent_of(b[i], kLowest));
  }
  if (c != 0) top = std::max(top, exponent_of(c));
  if (top == std::numeric_limits<int>::min()) return 0.0f;
  top = std::max(top, -133);
  const double scale = power_of_two(kFraction - top);
  double sum = std::trunc(static_cast<double>(c) * scale);
  for (int i = 0; i < kTerms; ++i) {
    sum += std::trunc(static_cast<double>(a[i]) * static_cast<double>(b[i]) * scale);
  }
  return truncated(sum, top - kFraction);
}
inline float dot16(const float* a, const float* b, float c) { return dot<16, 25, -126>(a, b, c); }
inline float dot4(const float* a, const float* b, float c) { return dot<4, 23, -14>(a, b, c); }

// a, b: 64 values of e2m1 codes; e4m3 scales of each 16.
inline float dot64_fp4(const float* a, const float* b, const std::uint8_t* scales_a,
                       const std::uint8_t* scales_b, float c) {
  constexpr int kFraction = 35;
  double term[4];  // at its own exponent
  int e[4], top = c == 0 ? std::numeric_limits<int>::min() : exponent_of(c);
  bool nan = std::isnan(c);
  for (int i = 0; i < 4; ++i) {
    const float u = num::e4m3_to_float(scales_a[i] & 0x7Fu), v = num::e4m3_to_float(scales_b[i] & 0x7Fu);
    nan = nan || std::isnan(u) || std::isnan(v);
    e[i] = 0;
    term[i] = 0;
    if (u == 0 || v == 0) continue;  // takes no part
    const int of_u = exponent_of(u, -6), of_v = exponent_of(v, -6);
    double sum = 0;
    for (int k = 16 * i; k < 16 * i + 16; ++k) sum += static_cast<double>(a[k]) * static_cast<double>(b[k]);
    e[i] = of_u + of_v;
    term[i] = sum * static_cast<double>(u) * static_cast<double>(v) * power_of_two(-e[i]);
    top = std::max(top, e[i]);
  }
  if (nan) return std::numeric_limits<float>::quiet_NaN();
  if (std::isinf(c)) return c;
  if (top == std::numeric_limits<int>::min()) return 0.0f;
  double sum = std::trunc(static_cast<double>(c) * power_of_two(kFraction - top));
  for (int i = 0; i < 4; ++i) sum += std::trunc(term[i] * power_of_two(e[i] + kFraction - top));
  return truncated(sum, top - kFraction);
}

}  // namespace fused

// What the file says: the value, or code * block scale.
inline float weight_element(const Weight& w, std::int64_t n, std::int64_t k) {
  const auto i = static_cast<std::size_t>(n * w.cols + k);
  switch (w.format) {
    case WeightFormat::f32:
      return load_le<float>(w.codes, i * 4);
    case WeightFormat::f16:
      return num::f16_to_float(load_le<std::uint16_t>(w.codes, i * 2));
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

inline bool is_unquantised(WeightFormat f) { return f != WeightFormat::nvfp4 && f != WeightFormat::fp8_e4m3; }

// sm70: e of a row whose operands are f16(w * 2^-e).
inline int weight_exponent_of(const Weight& w, std::int64_t n) {
  if (!is_unquantised(w.format)) return 0;
  float amax = 0;
  for (std::int64_t k = 0; k < w.cols; ++k) {
    const float v = std::fabs(weight_element(w, n, k));
    if (std::isfinite(v)) amax = std::max(amax, v);
  }
  return amax == 0 ? 0 : std::max(-126, std::ilogb(amax) - 14);
}

inline bool shifted(const Weight& w, cuda::ArchPath path) {
  return path == cuda::ArchPath::sm90 && w.format == WeightFormat::nvfp4;
}
// Operands of row n; returns what alpha takes.
inline float weight_row_of(const Weight& w, cuda::ArchPath path, std::int64_t n, float* out) {
  const bool f16 = path == cuda::ArchPath::sm70;
  const int e = f16 ? weight_exponent_of(w, n) : 0;
  for (std::int64_t k = 0; k < w.cols; ++k) {
    out[k] = weight_element(w, n, k);
    if (shifted(w, path)) out[k] = num::mul(out[k], num::kSm90Nvfp4Unit);
    if (!is_unquantised(w.format)) continue;
    out[k] = f16 ? num::f16_to_float(num::float_to_f16(std::ldexp(out[k], -e)))
                 : num::bf16_to_float(num::float_to_bf16(out[k]));
  }
  return std::ldexp(1.0f, e);
}

inline float input_operand(const LinearInput& x, ActivationFormat::Kind kind, cuda::ArchPath path,
                           std::int64_t cols, std::int64_t row, std::int64_t k) {
  const auto i = static_cast<std::size_t>(row * cols + k);
  if (kind == ActivationFormat::Kind::none) {
    return path == cuda::ArchPath::sm70 ? num::f16_to_float(x.values[i]) : num::bf16_to_float(x.values[i]);
  }
  if (kind != ActivationFormat::Kind::nvfp4_static) return num::e4m3_to_float(x.codes[i]);
  const unsigned two = x.codes[i / 2];
  return num::mul(num::e2m1_to_float(static_cast<std::uint8_t>(i % 2 == 0 ? two & 15 : two >> 4)),
                  num::e4m3_to_float(x.byte_scales[i / 16]));
}

// One group of the block-scaled unit, columns k .. k + 63 of weight row n and input row `row`.
inline float fp4_group(const Weight& w, const LinearInput& x, std::int64_t n, std::int64_t row, std::int64_t k,
                       float sum) {
  float a[64] = {}, b[64] = {};
  std::uint8_t scales_a[4] = {}, scales_b[4] = {};
  const auto code = [](unsigned two, std::size_t i) {
    return num::e2m1_to_float(static_cast<std::uint8_t>(i % 2 == 0 ? two & 15 : two >> 4));
  };
  for (std::int64_t j = 0; j < 64 && k + j < w.cols; ++j) {
    const auto of_w = static_cast<std::size_t>(n * w.cols + k + j);
    const auto of_x = static_cast<std::size_t>(row * w.cols + k + j);
    a[j] = code(load_le<std::uint8_t>(w.codes, of_w / 2), of_w);
    b[j] = code(x.codes[of_x / 2], of_x);
    scales_a[j / 16] = load_le<std::uint8_t>(w.block_scales, of_w / 16);
    scales_b[j / 16] = x.byte_scales[of_x / 16];
  }
  return fused::dot64_fp4(a, b, scales_a, scales_b, sum);
}

// A group of sm90's FP8 unit; zero past the `left` columns that there are.
inline float fp8_group(std::int64_t left, const float* x, const float* w, float sum) {
  float a[32] = {}, b[32] = {};
  std::copy_n(w, std::min<std::int64_t>(32, left), a);
  std::copy_n(x, std::min<std::int64_t>(32, left), b);
  return num::fused_dot<32, 13, num::kFp8ResultBits, num::kE4m3MinExponent>(a, b, sum);
}

// `unit`: what weight_row_of() returned.
inline float mirror_output(const Weight& w, cuda::ArchPath path, const ActivationFormat& format,
                           const LinearInput& x, const float* weight_row, float unit, const float* x_row,
                           std::int64_t n, std::int64_t row, bool fp8_unit = false) {
  using Kind = ActivationFormat::Kind;
  const bool block128 = w.scale_layout == ScaleLayout::block128;
  const bool group128 = format.kind == Kind::fp8_token_group128;
  const num::Segments cut = num::linear_segments(w.order_rows(), w.cols, block128 || group128 || fp8_unit);
  const std::int64_t across = (w.cols + 127) / 128;
  float total = 0;
  for (std::int32_t s = 0; s < cut.count; ++s) {
    const std::int64_t begin = std::int64_t{s} * cut.length;
    const std::int64_t end = std::min<std::int64_t>(begin + cut.length, w.cols);
    float sum = 0;
    if (path == cuda::ArchPath::sm70) {
      for (std::int64_t k = begin; k < end; k += 4) sum = fused::dot4(x_row + k, weight_row + k, sum);
    } else if (path == cuda::ArchPath::sm120 && w.format == WeightFormat::nvfp4 &&
               format.kind == Kind::nvfp4_static) {
      for (std::int64_t k = begin; k < end; k += 64) sum = fp4_group(w, x, n, row, k, sum);
    } else if (fp8_unit) {
      for (std::int64_t k = begin; k < end; k += 32) sum = fp8_group(w.cols - k, x_row + k, weight_row + k, sum);
    } else {
      for (std::int64_t k = begin; k < end; k += 16) sum = fused::dot16(x_row + k, weight_row + k, sum);
    }
    if (group128) sum = num::mul(sum, x.scales[static_cast<std::size_t>(row * across + s)]);
    total = block128 ? num::fma(sum, w.scales[static_cast<std::size_t>(n / 128 * across + s)], total)
                     : num::add(total, sum);
  }
  float alpha = unit, scale = 1;
  if (w.scale_layout == ScaleLayout::tensor) alpha = w.scales[0];
  if (w.scale_layout == ScaleLayout::row) alpha = w.scales[static_cast<std::size_t>(n)];
  if (shifted(w, path)) alpha = num::mul(alpha, num::kSm90Nvfp4Scale);
  if (format.kind == Kind::nvfp4_static || format.kind == Kind::fp8_tensor_static) scale = format.scale;
  if (format.kind == Kind::fp8_token) scale = x.scales[static_cast<std::size_t>(row)];
  if (format.kind == Kind::none && path == cuda::ArchPath::sm70) {
    scale = std::ldexp(1.0f, x.exponents[static_cast<std::size_t>(row)]);
  }
  return num::mul(num::mul(total, alpha), scale);
}

// y[row, i] of the weight rows columns[i], before it is rounded to y's type.
inline void mirror_linear(const Weight& w, const ActivationFormat& format, const LinearInput& x,
                          const std::vector<std::int64_t>& columns, std::vector<float>& y,
                          cuda::ArchPath path = cuda::ArchPath::sm90, bool fp8_unit = false) {
  const std::int64_t padded = (w.cols + 15) / 16 * 16;
  std::vector<float> inputs(static_cast<std::size_t>(x.rows * padded));
  for (std::int64_t r = 0; r < x.rows; ++r) {
    for (std::int64_t k = 0; k < w.cols; ++k) {
      inputs[static_cast<std::size_t>(r * padded + k)] = input_operand(x, format.kind, path, w.cols, r, k);
    }
  }
  y.assign(static_cast<std::size_t>(x.rows) * columns.size(), 0.0f);
  const std::size_t workers = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, 16);
  const auto work = [&](std::size_t first) {
    std::vector<float> weight_row(static_cast<std::size_t>(padded));
    for (std::size_t i = first; i < columns.size(); i += workers) {
      const float unit = weight_row_of(w, path, columns[i], weight_row.data());
      for (std::int64_t r = 0; r < x.rows; ++r) {
        y[static_cast<std::size_t>(r) * columns.size() + i] = mirror_output(
            w, path, format, x, weight_row.data(), unit, inputs.data() + r * padded, columns[i], r, fp8_unit);
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < workers; ++i) threads.emplace_back(work, i);
  work(0);
  for (std::thread& t : threads) t.join();
}

}  // namespace nibble::test
