// probe.h: operands for one matrix instruction or a chain of them, in sorts, and how many of its
// results equal a model: a wrong model is counted, not only refused.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "core/numerics/codecs.h"
#include "core/numerics/fused_dot.h"
#include "tests/cuda/reference.h"
#include "tests/cuda/wgmma.cuh"
#include "tests/support/buffers.h"

namespace nibble::test {

struct FormatInfo {
  int bytes, mantissa_bits, exponent_bits;
  int wide_low, wide_high;  // exponents of Sort::wide
  constexpr int terms() const { return kStepBytes / bytes; }
  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};
constexpr FormatInfo info(Format f) {
  switch (f) {
    case Format::bf16:
      return {2, 7, 8, -40, 40};
    case Format::f16:
      return {2, 10, 5, -14, 15};
    case Format::e4m3:
      return {1, 3, 4, -6, 8};
    default:
      return {4, 23, 8, -40, 40};  // a float: the instruction ignores 13 bits
  }
}

// above: products that pass 2^128 and cancel, wholly or but for a finite rest.
// empty: no product but zeros. tiny: the largest product is near 2^-133, the floor
// of the alignment.
enum class Sort {
  normal,
  wide,
  zeros,
  empty,
  subnormal,
  largest,
  cancel,
  special,
  tiny,
  above,
  kCount
};
constexpr int kSorts = static_cast<int>(Sort::kCount);
inline const char* sort_name(Sort s) {
  constexpr const char* kNames[] = {"normal",  "wide",   "zeros",   "empty", "subnormal",
                                    "largest", "cancel", "special", "tiny",  "above"};
  return kNames[static_cast<int>(s)];
}
inline std::vector<Sort> sorts_of(Format f) {
  const bool float_range = f == Format::bf16 || f == Format::tf32;
  std::vector<Sort> all;
  for (int s = 0; s < (float_range ? kSorts : static_cast<int>(Sort::tiny)); ++s)
    all.push_back(static_cast<Sort>(s));
  return all;
}

// A code of the format with an exponent from `low` to `high`.
inline std::uint32_t code_of(const FormatInfo& f, Hash& random, int low, int high) {
  const std::uint32_t r = random(), pick = random();
  const auto field = static_cast<std::uint32_t>(f.bias() + low) +
                     pick % static_cast<std::uint32_t>(high - low + 1);
  std::uint32_t code = field << f.mantissa_bits | (r & ((1u << f.mantissa_bits) - 1u));
  if (f.bytes == 1 && code == 0x7Fu) code = 0x7Eu;  // e4m3 has its NaN there
  return code | (r >> 31) << (8 * f.bytes - 1);
}

inline std::uint32_t element(const FormatInfo& f, Sort sort, Hash& random) {
  const std::uint32_t r = random(), sign = (r >> 31) << (8 * f.bytes - 1);
  const std::uint32_t top_field = ((1u << f.exponent_bits) - 1u) << f.mantissa_bits;
  // Also when tf32 ignores the lower 13 bits; a payload only there would be an infinity.
  const std::uint32_t quiet_nan = top_field | 1u << (f.mantissa_bits - 1) | 1u;
  const int least = 1 - f.bias(), most = f.bytes == 1 ? 8 : f.bias();
  switch (sort) {
    case Sort::normal:
    case Sort::cancel:
      return code_of(f, random, -4, 4);
    case Sort::wide:
      return code_of(f, random, f.wide_low, f.wide_high);
    case Sort::zeros:
      return r % 3 == 0 ? sign : code_of(f, random, f.wide_low, f.wide_high);
    case Sort::empty:
      return sign;
    case Sort::subnormal:
      if (r % 2 == 0) return sign | (random() & ((1u << f.mantissa_bits) - 1u));
      return code_of(f, random, least, f.exponent_bits == 8 ? -10 : most);
    case Sort::largest:
      if (r % 4 == 0) return sign | (f.bytes == 1 ? 0x7Eu : top_field - 1u);
      return code_of(f, random, most > 50 ? 50 : most - 3, most);
    case Sort::tiny:
      return code_of(f, random, -80, -66);
    case Sort::above:
      return code_of(f, random, 62, 67);
    default:
      // Few enough that a third of the chains of e4m3 stay free of NaN.
      if (r % 512 == 0)
        return sign | (f.bytes == 1 ? 0x7Fu : r % 1024 == 0 ? top_field : quiet_nan);
      if (r % 64 < 6) return sign;
      return code_of(f, random, f.wide_low, f.wide_high);
  }
}

// Where they meet the products: those of narrow formats end at 2^33.
inline float accumulator(const FormatInfo& f, Sort sort, Hash& random) {
  const bool narrow = f.exponent_bits < 8;
  const std::uint32_t r = random(), any = random();
  if (r % 4 == 0) return num::bit_cast<float>(any & 0x80000000u);
  switch (sort) {
    case Sort::wide:
    case Sort::zeros:
      return narrow ? random.value(-30, 30) : random.value(-60, 60);
    case Sort::empty:
      if (r % 4 == 1) return num::bit_cast<float>(any & 0x807FFFFFu);
      return r % 4 == 2 ? num::bit_cast<float>(any) : random.value(-126, -100);
    case Sort::subnormal:
    case Sort::tiny:
      return r % 4 == 1 ? num::bit_cast<float>(any & 0x807FFFFFu) : random.value(-126, -100);
    case Sort::largest:
    case Sort::above:
      return narrow ? random.value(2 * f.wide_high - 8, 2 * f.wide_high + 6)
                    : random.value(100, 127);
    case Sort::special:
      if (r % 16 == 1) return num::bit_cast<float>((any & 0x80000000u) | 0x7F800000u);
      return num::bit_cast<float>(any);
    default:
      return random.value(-6, 6);
  }
}

// `blocks` independent products of [rows, k] and [cols, k], k = steps of 32 bytes.
struct Problem {
  Format format;
  int rows, cols, steps, blocks;
  std::vector<Sort> sorts;         // of block i: sorts[i % size]
  std::vector<std::uint8_t> a, b;  // [block, step, row, 32]
  std::vector<float> c;            // [block, row, col]

  Problem(Format f, int m, int n, int k_steps, int count, std::vector<Sort> which)
      : format(f), rows(m), cols(n), steps(k_steps), blocks(count), sorts(std::move(which)) {
    Hash random{static_cast<std::uint64_t>(f) * 1000003u +
                static_cast<std::uint64_t>(n * 16 + steps)};
    for (int block = 0; block < blocks; ++block) {
      for (int s = 0; s < steps; ++s) {
        for (int i = 0; i < rows; ++i) put_row(a, random, block, false);
      }
      for (int s = 0; s < steps; ++s) {
        for (int i = 0; i < cols; ++i) put_row(b, random, block, true);
      }
      for (int i = 0; i < rows * cols; ++i)
        c.push_back(accumulator(info(format), sort(block), random));
    }
  }
  Sort sort(int block) const { return sorts[static_cast<std::size_t>(block) % sorts.size()]; }
  std::size_t results() const { return c.size(); }

  // Row `row` of one operand of a block as floats, [step, term].
  std::vector<float> floats(const std::vector<std::uint8_t>& from, int block, int count,
                            int row) const {
    const FormatInfo f = info(format);
    std::vector<float> v;
    for (int s = 0; s < steps; ++s) {
      const auto at = ((static_cast<std::size_t>(block) * steps + s) * count + row) * kStepBytes;
      for (int k = 0; k < f.terms(); ++k) {
        std::uint32_t code = 0;
        std::memcpy(&code, &from[at + static_cast<std::size_t>(k * f.bytes)],
                    static_cast<std::size_t>(f.bytes));
        v.push_back(format == Format::bf16   ? num::bf16_to_float(static_cast<std::uint16_t>(code))
                    : format == Format::f16  ? num::f16_to_float(static_cast<std::uint16_t>(code))
                    : format == Format::e4m3 ? num::e4m3_to_float(static_cast<std::uint8_t>(code))
                                             : num::bit_cast<float>(code));
      }
    }
    return v;
  }

 private:
  void put_row(std::vector<std::uint8_t>& to, Hash& random, int block, bool negate) {
    const FormatInfo f = info(format);
    const Sort which = sort(block);
    std::uint32_t codes[32];
    for (int k = 0; k < f.terms(); ++k) codes[k] = element(f, which, random);
    if (which == Sort::cancel || which == Sort::above) {
      // Pairs of products of opposite sign: all of them (c is what is left), or all but two terms.
      const bool all = which == Sort::above || block / static_cast<int>(sorts.size()) % 2 == 0;
      for (int k = 0; k + 1 < f.terms() - (all ? 0 : 2); k += 2) {
        codes[k + 1] = codes[k] ^ (negate ? 1u << (8 * f.bytes - 1) : 0u);
      }
      // In half of the columns one pair leaves a rest of a 2^-7th or less.
      if (which == Sort::above && negate && random() % 2 == 0)
        codes[1] ^= f.bytes == 4 ? 1u << 16 : 1u;
    }
    for (int k = 0; k < f.terms(); ++k) {
      for (int i = 0; i < f.bytes; ++i)
        to.push_back(static_cast<std::uint8_t>(codes[k] >> (8 * i)));
    }
  }
};

inline void print_row(const std::string& name, std::size_t equal, std::size_t of) {
  std::printf("probe | %s | %zu | %zu\n", name.c_str(), equal, of);
  std::string key = name;
  for (char& ch : key) {
    if ((ch < 'a' || ch > 'z') && (ch < 'A' || ch > 'Z') && (ch < '0' || ch > '9')) ch = '_';
  }
  ::testing::Test::RecordProperty(key, std::to_string(equal) + " of " + std::to_string(of));
}

// Results that the model gives, model(a, b, c) being one instruction. Without `keep_c` the first
// one takes c as +0.
template <class Model>
std::vector<float> modelled(const Problem& p, bool keep_c, Model model) {
  const int terms = info(p.format).terms();
  std::vector<float> d(p.results());
  for (int block = 0; block < p.blocks; ++block) {
    std::vector<std::vector<float>> b;
    for (int j = 0; j < p.cols; ++j) b.push_back(p.floats(p.b, block, p.cols, j));
    for (int i = 0; i < p.rows; ++i) {
      const std::vector<float> a = p.floats(p.a, block, p.rows, i);
      for (int j = 0; j < p.cols; ++j) {
        const auto at = (static_cast<std::size_t>(block) * p.rows + i) * p.cols + j;
        float sum = keep_c ? p.c[at] : 0.0f;
        for (int s = 0; s < p.steps; ++s) sum = model(&a[s * terms], &b[j][s * terms], sum);
        d[at] = sum;
      }
    }
  }
  return d;
}

// A row of the table for all results, one for each sort that has others, and one such result in
// full. `expected`: the claim that is tested; else a rival, which only gets its row.
inline void compare(const std::string& name, const Problem& p, const std::vector<float>& device,
                    const std::vector<float>& model, bool expected) {
  std::size_t equal[kSorts] = {}, of[kSorts] = {}, all = 0, nan = 0, canonical = 0;
  const auto per_block = static_cast<std::size_t>(p.rows * p.cols);
  for (std::size_t i = 0; i < p.results(); ++i) {
    const int block = static_cast<int>(i / per_block), sort = static_cast<int>(p.sort(block));
    const bool same = same_bits(device[i], model[i]);
    if (!same && expected && equal[sort] == of[sort]) {  // the sort's first
      const int row = static_cast<int>(i % per_block) / p.cols,
                col = static_cast<int>(i % per_block) % p.cols;
      std::printf("%s, %s: block %d row %d column %d: device %a, model %a, c %a; a b", name.c_str(),
                  sort_name(p.sort(block)), block, row, col, device[i], model[i], p.c[i]);
      const std::vector<float> a = p.floats(p.a, block, p.rows, row),
                               b = p.floats(p.b, block, p.cols, col);
      for (std::size_t k = 0; p.steps == 1 && k < a.size(); ++k) std::printf(" %a %a,", a[k], b[k]);
      std::printf("\n");
    }
    ++of[sort];
    equal[sort] += same;
    all += same;
    nan += device[i] != device[i];
    canonical += num::bit_cast<std::uint32_t>(device[i]) == 0x7FFFFFFFu;
  }
  print_row(name, all, p.results());
  for (int s = 0; s < kSorts; ++s) {
    if (equal[s] == of[s]) continue;
    print_row(name + ", " + sort_name(static_cast<Sort>(s)), equal[s], of[s]);
  }
  if (!expected) {  // operands on which a rival rule agrees everywhere would show nothing
    EXPECT_LT(all, p.results()) << name;
    return;
  }
  if (nan != 0) print_row(name + ", NaN is 0x7FFFFFFF", canonical, nan);
  EXPECT_EQ(all, p.results()) << name;
}

// What becomes of sums with a product of 2^128 or more: finite ones, infinities and NaN (one step
// only).
inline void print_outcomes(const std::string& name, const Problem& p,
                           const std::vector<float>& device) {
  std::size_t count = 0, finite = 0, zero = 0, nan = 0;
  for (int block = 0; block < p.blocks; ++block) {
    std::vector<std::vector<float>> b;
    for (int j = 0; j < p.cols; ++j) b.push_back(p.floats(p.b, block, p.cols, j));
    for (int i = 0; i < p.rows; ++i) {
      const std::vector<float> a = p.floats(p.a, block, p.rows, i);
      for (int j = 0; j < p.cols; ++j) {
        bool passes = false;
        for (std::size_t k = 0; k < a.size(); ++k)
          passes |= std::fabs(double{a[k]} * b[j][k]) >= 0x1p128;
        if (!passes) continue;
        const float d = device[(static_cast<std::size_t>(block) * p.rows + i) * p.cols + j];
        ++count;
        finite += std::isfinite(d);
        zero += d == 0.0f;
        nan += d != d;
      }
    }
  }
  print_row(name + ", a product passes 2^128: sum finite", finite, count);
  print_row(name + ", a product passes 2^128: sum zero", zero, count);
  print_row(name + ", a product passes 2^128: sum NaN", nan, count);
}

}  // namespace nibble::test
