// linear_fused_reference.h: Linear of a 16-bit profile as docs/numerics.md says it, by plain loops over the
// scalar models, and inputs that go through its rounding.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backends/cpu/ops/any_linear.h"
#include "backends/cpu/ops/linear_fused.h"
#include "backends/cpu/ops/quantize.h"
#include "core/numerics/bf16_order.h"
#include "core/numerics/fused_fp4.h"
#include "tests/cpu/linear_reference.h"
#include "tests/support/buffers.h"

namespace nibble::test {

using cpu::Isa;
using cpu::Kernels;
using cpu::Parallel;
using cpu::Profile;
using Kind = ActivationFormat::Kind;

constexpr std::int64_t kMost = 65;

inline float to_bf16(float v) { return num::bf16_to_float(num::float_to_bf16(v)); }

inline float to_f16(float v, int e) { return num::f16_to_float(num::float_to_f16(std::ldexp(v, -e))); }

// The largest e so that every finite v * 2^-e stays below 2^15, or `none`.
template <class Values>
int row_exponent(const Values& row, int none) {
  float amax = 0;
  for (const float v : row) {
    if (std::isfinite(v)) amax = std::max(amax, std::fabs(v));
  }
  return amax == 0 ? none : std::ilogb(amax) - 14;
}

// A weight's operands and factors, as docs/numerics.md says them.
struct Operands {
  std::vector<float> values, alpha;

  Operands(Profile profile, const Weight& w) : values(operands(w)) {
    const bool plain = w.format != WeightFormat::nvfp4 && w.format != WeightFormat::fp8_e4m3;
    for (std::int64_t n = 0; n < w.rows; ++n) {
      const std::span<float> row(values.data() + n * w.cols, static_cast<std::size_t>(w.cols));
      const int e = plain && profile == Profile::sm70 ? std::max(row_exponent(row, 0), -126) : 0;
      alpha.push_back(std::ldexp(test::alpha(w, n), e));
      if (profile == Profile::sm90 && w.format == WeightFormat::nvfp4) {
        for (float& v : row) v *= 0x1p-7f;
        alpha.back() *= 0x1p7f;
      }
      if (!plain) continue;
      for (float& v : row) {
        v = profile == Profile::sm70 ? to_f16(v, e) : profile == Profile::bf16 ? num::bf16_operand(v) : to_bf16(v);
      }
    }
  }
};

template <int Group, int F, int MinExponent, int Bits = 24>
float chain(const float* x, const float* w, std::int64_t from, std::int64_t to) {
  float sum = 0;
  for (std::int64_t k0 = from; k0 < to; k0 += Group) {
    float a[Group] = {}, b[Group] = {};
    for (std::int64_t k = k0; k < std::min(k0 + Group, to); ++k) {
      a[k - k0] = x[k];
      b[k - k0] = w[k];
    }
    sum = num::fused_dot<Group, F, Bits, MinExponent>(a, b, sum);
  }
  return sum;
}

// Codes and scales of a row, padded to groups of 64.
struct Fp4Row {
  std::vector<std::uint32_t> codes, scales;
  Fp4Row(const void* c, const void* s, std::int64_t k)
      : codes(static_cast<std::size_t>((k + 63) / 64 * 8)), scales(static_cast<std::size_t>((k + 63) / 64)) {
    std::memcpy(codes.data(), c, static_cast<std::size_t>(k / 2));
    std::memcpy(scales.data(), s, static_cast<std::size_t>(k / 16));
  }
};

inline float fp4_chain(const Fp4Row& x, const Fp4Row& w, std::int64_t from, std::int64_t to) {
  float sum = 0;
  for (auto g = static_cast<std::size_t>(from / 64); g < static_cast<std::size_t>((to + 63) / 64); ++g) {
    sum = num::fused_fp4(&x.codes[g * 8], &w.codes[g * 8], x.scales[g], w.scales[g], sum);
  }
  return sum;
}

// Columns [from, to) of profile bf16, padded with zeros.
inline float bf16_chain(const float* x, const float* w, std::int64_t from, std::int64_t to) {
  float total = 0;
  for (; from < to; from += num::kBf16Block) {
    float a[num::kBf16Block] = {}, b[num::kBf16Block] = {};
    const auto count = static_cast<std::size_t>(std::min<std::int64_t>(num::kBf16Block, to - from));
    std::copy_n(x + from, count, a);
    std::copy_n(w + from, count, b);
    total = num::bf16_block(a, b, 1, total);
  }
  return total;
}

inline num::Segments segments_of(Profile profile, const Weight& w, bool blocks) {
  if (profile == Profile::bf16 && !blocks) return {1, static_cast<std::int32_t>(w.cols)};
  return num::linear_segments(w.order_rows(), w.cols, blocks);
}

// One output. `sum(from, to)`: of a segment; `group`: scales of 128 columns or null; `fp8_unit`: segments of 128.
template <class Sum>
float reference(Profile profile, const Weight& w, float alpha, std::int64_t n, const Sum& sum, const float* group,
                float post, bool fp8_unit) {
  const bool blocks = group != nullptr || w.scale_layout == ScaleLayout::block128 || fp8_unit;
  const num::Segments segments = segments_of(profile, w, blocks);
  float total = 0;
  for (std::int64_t s = 0; s < segments.count; ++s) {
    const std::int64_t from = s * segments.length, to = std::min(from + segments.length, w.cols);
    float part = sum(from, to);
    if (group != nullptr) part = part * group[s];
    total = w.scale_layout == ScaleLayout::block128
                ? std::fma(part, block_scale(w, n, s * 128), total)
                : total + part;
  }
  return total * alpha * post;
}

struct Input {  // kMost rows, quantised or not, and their operands
  Profile profile;
  ActivationFormat format;
  std::int64_t cols;
  bool fp8_unit = false;  // mode a8
  std::vector<float> x, operand, float_scales;
  std::vector<std::int32_t> exponents;
  std::vector<std::uint8_t> codes, byte_scales;

  Input(Profile of, Kind kind, std::int64_t k, unsigned seed) : profile(of), cols(k) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    x.resize(static_cast<std::size_t>(kMost * k));
    for (float& v : x) v = normal(random);
    format.kind = kind;
    // Row 0 keeps large values, 1 zeros, 2 an infinity, 3 a NaN, 4 tiny values, the last one 2^127.
    for (std::int64_t c = 0; c < k; ++c) {
      at(0, c) *= 1e5f;
      at(1, c) = c % 2 == 0 ? 0.0f : -0.0f;
      at(4, c) *= 1e-30f;
      at(kMost - 1, c) *= 0x1p125f;
    }
    at(2, k / 2) = INFINITY;
    at(3, k / 3) = NAN;
    round_rows();
    if (kind != Kind::none) exponents.clear();
    if (kind == Kind::nvfp4_static) format.scale = 0.004f;
    if (kind == Kind::fp8_tensor_static) format.scale = 0.01f;
    if (kind == Kind::none) return;
    codes.resize(static_cast<std::size_t>(kMost * code_cols()));
    byte_scales.resize(static_cast<std::size_t>(kMost * scale_cols()));
    float_scales.resize(byte_scales.size());
    Parallel one(1);
    cpu::quantize(Isa::portable, one,
                  {kMost, k, format, x.data(), k, codes.data(), code_cols(), scales(0), scale_cols()});
    for (std::int64_t t = 0; t < kMost; ++t) {
      for (std::int64_t c = 0; c < k; ++c) operand[static_cast<std::size_t>(t * k + c)] = decoded(t, c);
    }
  }
  float& at(std::int64_t t, std::int64_t c) { return x[static_cast<std::size_t>(t * cols + c)]; }
  // To what the profile's buffers hold; operand: what its matrix units read.
  void round_rows() {
    operand = x;
    exponents.assign(static_cast<std::size_t>(kMost), 0);
    for (std::int64_t t = 0; t < kMost; ++t) {
      const std::span<float> row(&at(t, 0), static_cast<std::size_t>(cols));
      const int e = profile == Profile::sm70 ? std::max(row_exponent(row, 0), 0) : 0;
      exponents[static_cast<std::size_t>(t)] = e;
      for (std::int64_t c = 0; c < cols; ++c) {
        if (profile == Profile::bf16) {  // rounds at the linear layer only
          operand[static_cast<std::size_t>(t * cols + c)] = num::bf16_operand(at(t, c));
          continue;
        }
        const float h = profile == Profile::sm70 ? to_f16(at(t, c), e) : to_bf16(at(t, c));
        at(t, c) = std::ldexp(h, e);
        operand[static_cast<std::size_t>(t * cols + c)] = std::isinf(at(t, c)) ? at(t, c) : h;
      }
    }
  }
  std::int64_t code_cols() const { return format.kind == Kind::nvfp4_static ? cols / 2 : cols; }
  std::int64_t scale_cols() const {
    switch (format.kind) {
      case Kind::nvfp4_static:
        return cols / 16;
      case Kind::fp8_token:
        return 1;
      case Kind::fp8_token_group128:
        return (cols + 127) / 128;
      default:
        return 0;
    }
  }
  void* scales(std::int64_t row) {
    if (format.kind == Kind::nvfp4_static) return byte_scales.data() + row * scale_cols();
    return float_scales.data() + row * scale_cols();
  }
  float decoded(std::int64_t t, std::int64_t c) const {
    if (format.kind != Kind::nvfp4_static) {
      return num::e4m3_to_float(codes[static_cast<std::size_t>(t * cols + c)]);
    }
    const auto two = codes[static_cast<std::size_t>(t * code_cols() + c / 2)];
    return num::e2m1_to_float(static_cast<std::uint8_t>(c % 2 == 0 ? two & 15 : two >> 4)) *
           num::e4m3_to_float(byte_scales[static_cast<std::size_t>(t * scale_cols() + c / 16)]);
  }
  const float* group(std::int64_t t) const {
    return format.kind == Kind::fp8_token_group128 ? float_scales.data() + t * scale_cols() : nullptr;
  }
  float post(std::int64_t t) const {
    if (format.kind == Kind::none) return std::ldexp(1.0f, exponents[static_cast<std::size_t>(t)]);
    if (format.kind == Kind::fp8_token) return float_scales[static_cast<std::size_t>(t)];
    return format.kind == Kind::nvfp4_static || format.kind == Kind::fp8_tensor_static ? format.scale
                                                                                       : 1.0f;
  }
};

inline void run(const Kernels& kernels, Parallel& parallel, const cpu::PackedWeight& w, Input& in, std::int64_t first,
         std::int64_t rows, Guarded& y) {
  const Aligned workspace(
      static_cast<std::uint64_t>(
          cpu::any_linear_workspace_bytes(in.profile, kernels, parallel.threads(), rows, in.cols, in.format)));
  cpu::LinearArgs a;
  a.weight = &w;
  a.rows = rows;
  a.format = in.format;
  a.fp8_unit = in.fp8_unit;
  if (in.format.kind == Kind::none) {
    a.x = in.x.data() + first * in.cols;
    a.x_stride = in.cols;
    a.x_exponents = in.exponents.data() + first;
  } else {
    a.codes = in.codes.data() + first * in.code_cols();
    a.x_stride = in.code_cols();
    a.scales = in.scales(first);
    a.scale_stride = in.scale_cols();
  }
  a.y = y.data();
  a.y_stride = y.stride();
  a.workspace = workspace.data;
  cpu::any_linear(in.profile, kernels, parallel, a);
}

// All outputs of all rows.
inline std::vector<float> expected(const Weight& w, const Operands& ops, const Input& in) {
  std::vector<float> want;
  const bool fp4 = in.profile == Profile::sm120 && in.format.kind == Kind::nvfp4_static &&
                   w.format == WeightFormat::nvfp4;
  for (std::int64_t t = 0; t < kMost; ++t) {
    for (std::int64_t n = 0; n < w.rows; ++n) {
      const float* x = in.operand.data() + t * w.cols;
      const float* row = ops.values.data() + n * w.cols;
      const float alpha = ops.alpha[static_cast<std::size_t>(n)];
      const auto put = [&](const auto& sum) {
        want.push_back(reference(in.profile, w, alpha, n, sum, in.group(t), in.post(t), in.fp8_unit));
      };
      if (fp4) {
        const Fp4Row a(in.codes.data() + t * in.code_cols(), in.byte_scales.data() + t * in.scale_cols(),
                       w.cols);
        const Fp4Row b(w.codes.data() + n * w.cols / 2, w.block_scales.data() + n * w.cols / 16, w.cols);
        put([&](auto from, auto to) { return fp4_chain(a, b, from, to); });
      } else if (in.fp8_unit && in.profile == Profile::sm90) {
        put([&](auto from, auto to) { return chain<32, 13, num::kE4m3MinExponent, 14>(x, row, from, to); });
      } else if (in.profile == Profile::bf16) {
        put([&](auto from, auto to) { return bf16_chain(x, row, from, to); });
      } else if (in.profile == Profile::sm70) {
        put([&](auto from, auto to) { return chain<4, 23, num::kF16MinExponent>(x, row, from, to); });
      } else {
        put([&](auto from, auto to) { return chain<16, 25, num::kBf16MinExponent>(x, row, from, to); });
      }
    }
  }
  return want;
}

// The first and the last rows of kMost in batches of many sizes, by each of `threads`: where a row lies changes nothing.
inline void expect_every_cut(const Kernels& kernels, const std::vector<Parallel*>& threads, const cpu::PackedWeight& w, Input& in,
                             const std::vector<float>& want, const std::string& label) {
  for (const std::int64_t rows : {1, 2, 3, 5, 17, 64, 65}) {
    for (Parallel* const parallel : threads) {
      for (const std::int64_t first : {std::int64_t{0}, kMost - rows}) {
        Guarded y(rows, w.rows);
        run(kernels, *parallel, w, in, first, rows, y);
        ASSERT_EQ(y.damage(), "");
        for (std::int64_t t = 0; t < rows; ++t) {
          for (std::int64_t n = 0; n < w.rows; ++n) {
            const float e = want[static_cast<std::size_t>((first + t) * w.rows + n)];
            ASSERT_TRUE(same_bits(y.at(t, n), e))
                << cpu::kernels_name(kernels) << label << " T " << rows << " threads " << parallel->threads() << " y[" << t << ", "
                << n << "] " << y.at(t, n) << " != " << e;
          }
        }
      }
    }
  }
}

}  // namespace nibble::test
