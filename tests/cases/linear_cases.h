// linear_cases.h: the table of Linear's cases and their random weights and inputs. Needs no CUDA: a card runs them, and
// the CPU's mirror reproduces what it left (tests/cpu/linear_digests_test.cpp).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "backends/cuda/arch_path.h"
#include "core/checkpoint/weight.h"
#include "core/numerics/codecs.h"

namespace nibble::test {

using Kind = ActivationFormat::Kind;

struct Hash {  // splitmix64: cheap enough for whole weights
  std::uint64_t state;
  std::uint32_t operator()() {
    std::uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return static_cast<std::uint32_t>(z >> 32);
  }
  // Either sign, exponents from `low` to `high`.
  float value(int low, int high) {
    const std::uint32_t r = (*this)();
    const auto field = static_cast<std::uint32_t>(
        127 + low + static_cast<int>((r >> 24 & 127u) % static_cast<unsigned>(high - low + 1)));
    return num::bit_cast<float>((r & 0x807FFFFFu) | field << 23);
  }
  // e4m3 of every sort; NaN only where asked for.
  std::uint8_t code8(bool nan) {
    const auto b = static_cast<std::uint8_t>((*this)());
    return (b & 127) == 127 && !nan ? static_cast<std::uint8_t>(b - 1) : b;
  }
};

struct Combination {
  WeightFormat format;
  ScaleLayout layout;
  Kind kind;
};
inline std::vector<Combination> combinations() {
  using F = WeightFormat;
  using L = ScaleLayout;
  std::vector<Combination> all;
  for (const F f : {F::bf16, F::f16, F::f32}) all.push_back({f, L::none, Kind::none});
  for (const L l : {L::tensor, L::row}) {
    for (const Kind k : {Kind::none, Kind::nvfp4_static}) all.push_back({F::nvfp4, l, k});
  }
  for (const L l : {L::tensor, L::row, L::block128}) {
    for (const Kind k : {Kind::none, Kind::fp8_tensor_static, Kind::fp8_token,
                         Kind::fp8_token_group128}) {
      all.push_back({F::fp8_e4m3, l, k});
    }
  }
  return all;
}
// Both FP4 combinations, and two that run sm90's kernels: what the card's tests run on path sm120.
inline std::vector<Combination> sm120_combinations() {
  return {{WeightFormat::nvfp4, ScaleLayout::tensor, Kind::nvfp4_static},
          {WeightFormat::nvfp4, ScaleLayout::row, Kind::nvfp4_static},
          {WeightFormat::nvfp4, ScaleLayout::tensor, Kind::none},
          {WeightFormat::fp8_e4m3, ScaleLayout::row, Kind::fp8_token}};
}
inline std::string combination_name(const Combination& c) {
  return std::string(weight_format_name(c.format)) + "_" + scale_layout_name(c.layout) + "_x_" +
         activation_format_name(c.kind);
}

struct Case {
  std::int64_t n, k, t;
  bool special;  // inf, NaN and the whole range of exponents in some rows, hostile scales
  bool bf16_output;
  std::int64_t gap;
};
inline std::string case_text(const Combination& c, const Case& s) {
  return combination_name(c) + " N=" + std::to_string(s.n) + " K=" + std::to_string(s.k) +
         " T=" + std::to_string(s.t) + (s.special ? " special" : "");
}
// In files of digests: the index tells cases apart that differ by their seeds only.
inline std::string case_key(const Combination& c, const Case& s, std::size_t index) {
  return case_text(c, s) + (s.bf16_output ? " bf16 #" : " f32 #") + std::to_string(index);
}
// What T is somewhere in each combination: the edges of kernel classes and tiles.
constexpr std::int64_t kEveryT[] = {1, 2, 3, 5, 8, 16, 17, 31, 63, 64, 65, 127, 128, 129, 255, 257, 1024};

// 66 or 71 for each combination. New ones go to the end: seeds follow from a case's index.
inline std::vector<Case> cases_of(const Combination& c) {
  constexpr std::int64_t kRows[] = {1, 2, 3, 5, 8, 16, 17, 31, 63, 64, 65, 127, 128, 129, 257};
  std::vector<std::int64_t> depth = {16, 64, 96, 2880, 5120, 1040};
  if (c.format != WeightFormat::nvfp4) depth.push_back(77);
  std::vector<Case> all;
  const auto add = [&](std::int64_t n, std::int64_t k, std::int64_t t) {
    const std::size_t i = all.size();
    constexpr std::int64_t kGaps[] = {0, 8, 3};
    all.push_back({n, k, t, i % 5 == 4, i % 2 == 1, kGaps[i % 3]});
  };
  std::size_t turn = static_cast<std::size_t>(c.kind) * 2 + static_cast<std::size_t>(c.layout);
  for (const std::int64_t n : {96, 464, 1856, 2880, 77}) {
    for (const std::int64_t k : depth) add(n, k, kRows[turn++ * 7 % 15]);
  }
  for (const std::int64_t t : kRows) add(77, 96, t);
  for (const std::int64_t t : {1, 5, 17, 65}) add(200, 2064, t);
  // Small: the reference on the host is slow. Odd N, and odd K where the format takes it.
  constexpr std::int64_t kOddRows[] = {33, 129, 1}, kBlocks[] = {48, 16, 144}, kOddCols[] = {51, 15, 131};
  const bool blocks = c.format == WeightFormat::nvfp4 || c.kind == Kind::nvfp4_static;
  // A pointer: GCC 12 with -fsanitize=bounds reads element 0 whatever the index behind a choice of two arrays is.
  const std::int64_t* const cols = blocks ? kBlocks : kOddCols;
  for (std::size_t i = 0; i < std::size(kEveryT); ++i) add(kOddRows[i % 3], cols[i / 3 % 3], kEveryT[i]);
  return all;
}

struct OwnedWeight {
  Weight weight;
  std::vector<std::byte> codes, block_scales;

  OwnedWeight(const Combination& c, const Case& s, std::uint64_t seed) {
    Hash random{seed};
    weight.name = "w";
    weight.format = c.format;
    weight.rows = s.n;
    weight.cols = s.k;
    weight.scale_layout = c.layout;
    weight.activation.kind = c.kind;
    const int range = s.special ? 60 : 6;
    const auto count = static_cast<std::size_t>(s.n * s.k);
    const auto put = [&](auto make) {
      using T = decltype(make());
      codes.resize(count * sizeof(T));
      for (std::size_t i = 0; i < count; ++i) {
        const T v = make();
        std::memcpy(codes.data() + i * sizeof(T), &v, sizeof v);
      }
    };
    switch (c.format) {
      case WeightFormat::f32:
        put([&] { return random.value(-range, 1); });
        break;
      case WeightFormat::f16:
        put([&] { return static_cast<std::uint16_t>(num::float_to_f16(random.value(-range, 1))); });
        break;
      case WeightFormat::bf16:
        put([&] { return static_cast<std::uint16_t>(num::float_to_bf16(random.value(-range, 1))); });
        break;
      case WeightFormat::fp8_e4m3:
        put([&] { return random.code8(s.special && random() % 4096 == 0); });
        break;
      case WeightFormat::nvfp4:
        codes.resize(count / 2);
        for (std::byte& b : codes) b = static_cast<std::byte>(random());
        block_scales.resize(count / 16);
        for (std::byte& b : block_scales) {
          b = static_cast<std::byte>(random.code8(s.special && random() % 1024 == 0));
        }
    }
    weight.codes = codes;
    weight.block_scales = block_scales;
    const std::int64_t blocks = (s.n + 127) / 128 * ((s.k + 127) / 128);
    const std::int64_t scales = c.layout == ScaleLayout::none     ? 0
                                : c.layout == ScaleLayout::tensor ? 1
                                : c.layout == ScaleLayout::row    ? s.n
                                                                  : blocks;
    for (std::int64_t i = 0; i < scales; ++i) weight.scales.push_back(random.value(-8, 2));
  }
  OwnedWeight(const OwnedWeight&) = delete;
  OwnedWeight& operator=(const OwnedWeight&) = delete;
};

// Rows of x as a backend's buffers hold them: `values` for unquantised x, else codes and scales.
struct LinearInput {
  std::int64_t rows = 0;
  std::vector<std::uint16_t> values;     // bf16 [rows, K]; sm70: f16, row r times 2^exponents[r]
  std::vector<std::int32_t> exponents;   // sm70: [rows]
  std::vector<std::uint8_t> codes;       // [rows, K / 2] or [rows, K]
  std::vector<std::uint8_t> byte_scales;  // nvfp4_static [rows, K / 16]
  std::vector<float> scales;             // fp8_token [rows], group128 [rows, ceil(K / 128)]
};

// Seeds of a case's weight and of its input.
constexpr std::uint64_t kWeightSeed = 1000, kInputSeed = 5000;

inline ActivationFormat format_of(Kind kind) {
  return {kind, kind == Kind::nvfp4_static || kind == Kind::fp8_tensor_static ? 0.0371f : 0.0f};
}

// sm70: f16 with exponents; an odd row has any bits and a large exponent.
inline void random_f16_row(const Case& s, bool odd_row, Hash& random, LinearInput& x) {
  x.exponents.push_back(static_cast<std::int32_t>(odd_row ? random() % 114u : random() % 3u));
  for (std::int64_t k = 0; k < s.k; ++k) {
    x.values.push_back(odd_row && random() % 8 == 0 ? static_cast<std::uint16_t>(random())
                                                    : num::float_to_f16(random.value(odd_row ? -24 : -5, odd_row ? 15 : 2)));
  }
}

inline LinearInput random_input(const Combination& c, const Case& s, std::uint64_t seed,
                                cuda::ArchPath path = cuda::ArchPath::sm90) {
  Hash random{seed};
  LinearInput x;
  x.rows = s.t;
  for (std::int64_t r = 0; r < s.t; ++r) {
    const bool odd_row = s.special && r % 3 == 1;
    if (c.kind == Kind::none && path == cuda::ArchPath::sm70) {
      random_f16_row(s, odd_row, random, x);
      continue;
    }
    for (std::int64_t k = 0; k < s.k; ++k) {
      if (c.kind == Kind::none) {
        const bool rare = odd_row && random() % 64 == 0;
        x.values.push_back(rare ? static_cast<std::uint16_t>(random())
                                : num::float_to_bf16(odd_row ? random.value(-120, 110)
                                                             : random.value(-5, 2)));
      } else if (c.kind != Kind::nvfp4_static) {
        x.codes.push_back(random.code8(odd_row && random() % 256 == 0));
      } else if (k % 2 == 0) {
        x.codes.push_back(static_cast<std::uint8_t>(random()));
      }
      if (c.kind == Kind::nvfp4_static && k % 16 == 0) {
        const bool any_sign = odd_row && path == cuda::ArchPath::sm120;
        x.byte_scales.push_back(static_cast<std::uint8_t>(random.code8(odd_row) & (any_sign ? 0xFFu : 0x7Fu)));
      }
      if (c.kind == Kind::fp8_token_group128 && k % 128 == 0) x.scales.push_back(random.value(-9, 0));
    }
    if (c.kind == Kind::fp8_token) x.scales.push_back(random.value(-9, 0));
  }
  return x;
}

// sm70: values beyond float32 become the infinities that narrow_rows would have left. Kernels are tested with such
// values, but the CPU's buffers hold h * 2^exponent and cannot have them.
inline void put_in_float32(LinearInput& x) {
  const std::size_t cols = x.exponents.empty() ? 0 : x.values.size() / x.exponents.size();
  for (std::size_t i = 0; i < x.values.size() && cols != 0; ++i) {
    const float wide = num::f16_to_float(x.values[i]);
    if (std::isinf(std::ldexp(wide, x.exponents[i / cols]))) {
      x.values[i] = static_cast<std::uint16_t>((x.values[i] & 0x8000u) | 0x7C00u);
    }
  }
}

// Of the inputs' rows, `count` from `first` on.
inline LinearInput rows_of(const LinearInput& x, std::int64_t first, std::int64_t count) {
  LinearInput some;
  some.rows = count;
  const auto take = [&](const auto& from, auto& to) {
    const std::ptrdiff_t width = static_cast<std::ptrdiff_t>(from.size()) / x.rows;
    to.assign(from.begin() + first * width, from.begin() + (first + count) * width);
  };
  take(x.values, some.values);
  take(x.codes, some.codes);
  take(x.byte_scales, some.byte_scales);
  take(x.scales, some.scales);
  take(x.exponents, some.exponents);
  return some;
}
inline LinearInput row_of(const LinearInput& x, std::int64_t row) { return rows_of(x, row, 1); }

}  // namespace nibble::test
