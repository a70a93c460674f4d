// linear_reference.h: random weights of every format, and Linear written straight from the text of
// its contract, one scalar fma after the other.
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/ops/linear.h"
#include "core/numerics/codecs.h"

namespace nibble::test {

struct RandomWeight {
  Weight weight;
  std::vector<std::byte> codes, block_scales;

  RandomWeight(WeightFormat format, ScaleLayout layout, std::int64_t n, std::int64_t k,
               unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto count = static_cast<std::size_t>(n * k);
    weight.name = "w";
    weight.format = format;
    weight.rows = n;
    weight.cols = k;
    weight.scale_layout = layout;
    switch (format) {
      case WeightFormat::f32:
        put<float>(count, [&] { return normal(random); });
        break;
      case WeightFormat::f16:
        put<std::uint16_t>(count, [&] { return num::float_to_f16(normal(random)); });
        break;
      case WeightFormat::bf16:
        put<std::uint16_t>(count, [&] { return num::float_to_bf16(normal(random)); });
        break;
      case WeightFormat::fp8_e4m3:
        put<std::uint8_t>(count, [&] { return code8(random); });
        break;
      case WeightFormat::nvfp4:
        put<std::uint8_t>(count / 2, [&] { return static_cast<std::uint8_t>(random()); });
        for (std::size_t i = 0; i < count / 16; ++i)
          block_scales.push_back(static_cast<std::byte>(code8(random)));
        break;
    }
    weight.codes = codes;
    weight.block_scales = block_scales;
    const std::int64_t blocks = (n + 127) / 128 * ((k + 127) / 128);
    const std::int64_t scales = layout == ScaleLayout::none     ? 0
                                : layout == ScaleLayout::tensor ? 1
                                : layout == ScaleLayout::row    ? n
                                                                : blocks;
    for (std::int64_t i = 0; i < scales; ++i)
      weight.scales.push_back(std::exp(0.5f * normal(random)));
  }
  RandomWeight(const RandomWeight&) = delete;
  RandomWeight& operator=(const RandomWeight&) = delete;

  // e4m3 without NaN, subnormals and both signs included.
  static std::uint8_t code8(std::mt19937& random) {
    const auto b = static_cast<std::uint8_t>(random());
    return (b & 127) == 127 ? static_cast<std::uint8_t>(b - 1) : b;
  }

  template <class T, class Make>
  void put(std::size_t count, Make make) {
    codes.resize(count * sizeof(T));
    for (std::size_t i = 0; i < count; ++i) {
      const T v = make();
      std::memcpy(codes.data() + i * sizeof(T), &v, sizeof v);
    }
  }
};

// The operand of w[n, k].
inline float operand(const Weight& w, std::int64_t n, std::int64_t k) {
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
  const auto code = static_cast<std::uint8_t>(i % 2 == 0 ? two & 15 : two >> 4);
  return num::e2m1_to_float(code) *
         num::e4m3_to_float(load_le<std::uint8_t>(w.block_scales, i / 16));
}

inline std::vector<float> operands(const Weight& w) {
  std::vector<float> all;
  all.reserve(static_cast<std::size_t>(w.rows * w.cols));
  for (std::int64_t n = 0; n < w.rows; ++n) {
    for (std::int64_t k = 0; k < w.cols; ++k) all.push_back(operand(w, n, k));
  }
  return all;
}

inline float block_scale(const Weight& w, std::int64_t n, std::int64_t k) {
  return w.scales[static_cast<std::size_t>(n / 128 * ((w.cols + 127) / 128) + k / 128)];
}
inline float alpha(const Weight& w, std::int64_t n) {
  return w.scale_layout == ScaleLayout::row      ? w.scales[static_cast<std::size_t>(n)]
         : w.scale_layout == ScaleLayout::tensor ? w.scales[0]
                                                 : 1.0f;
}

// One output. x: the operand row; group: scales of group128 activations or null; post: static or
// row scale.
inline float reference_dot(const Weight& w, const std::vector<float>& ops, std::int64_t n,
                           const float* x, const float* group, float post) {
  const float* row = ops.data() + n * w.cols;
  float total = 0;
  for (std::int64_t k0 = 0; k0 < w.cols; k0 += 128) {
    float segment = 0;
    for (std::int64_t k = k0; k < std::min(k0 + 128, w.cols); ++k)
      segment = std::fma(x[k], row[k], segment);
    if (group != nullptr) segment = segment * group[k0 / 128];
    total = w.scale_layout == ScaleLayout::block128
                ? std::fma(segment, block_scale(w, n, k0), total)
                : total + segment;
  }
  return total * alpha(w, n) * post;
}

// The same in double by somebody else's arithmetic (Eigen), and the sum of magnitudes that bounds its
// error.
inline double exact_dot(const Weight& w, const std::vector<float>& ops, std::int64_t n,
                        const float* x, double* magnitude) {
  using Row = Eigen::Map<const Eigen::ArrayXf>;
  Eigen::ArrayXd terms = Row(x, w.cols).cast<double>() * Row(ops.data() + n * w.cols, w.cols).cast<double>();
  if (w.scale_layout == ScaleLayout::block128) {
    for (std::int64_t k = 0; k < w.cols; ++k) terms[k] *= static_cast<double>(block_scale(w, n, k));
  } else {
    terms *= static_cast<double>(alpha(w, n));
  }
  *magnitude = terms.abs().sum();
  return terms.sum();
}

}  // namespace nibble::test
