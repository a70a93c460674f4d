// units_support.h: what the tests of the ops on matrix units share: sums of the units, random numbers, bytes, errors.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "core/numerics/codecs.h"
#include "core/numerics/fused_dot.h"
#include "core/numerics/row_scale.h"
#include "tests/cpu/sequence_alone.h"

namespace nibble::test {

inline float bf16(float x) { return num::bf16_to_float(num::float_to_bf16(x)); }
inline float f16(float x, int e = 0) { return num::f16_to_float(num::weight_to_f16(x, e)); }

namespace units {

template <int Group, int F, int MinExponent>
float mma(float c, const Row& a, const Row& b) {
  for (std::size_t x = 0; x < a.size(); x += Group) {
    c = num::fused_dot<Group, F, 24, MinExponent>(a.data() + x, b.data() + x, c);
  }
  return c;
}
constexpr auto mma_bf16 = mma<16, 25, num::kBf16MinExponent>;
constexpr auto mma_f16 = mma<4, 23, num::kF16MinExponent>;

}  // namespace units

// Standard normal numbers (Box and Muller) from noise().
class Normal {
 public:
  explicit Normal(std::uint64_t seed, float (*round)(float) = bf16) : seed_(seed), round_(round) {}
  float operator()() {
    const double u = 0.5 + 0.499999 * static_cast<double>(noise(seed_, next_, 0)), v = noise(seed_, next_, 1);
    ++next_;
    return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(std::numbers::pi * v));
  }
  Row row(std::int64_t count, float size = 1.0f) {
    Row r(at(count));
    for (float& x : r) x = round_(size * (*this)());
    return r;
  }
  Row unit(std::int64_t count, float size) {
    Row r(at(count));
    double sum = 0;
    for (float& x : r) x = (*this)();
    for (const float x : r) sum += static_cast<double>(x) * static_cast<double>(x);
    for (float& x : r) x = round_(size * x / static_cast<float>(std::sqrt(sum)));
    return r;
  }

 private:
  std::uint64_t seed_;
  float (*round_)(float);
  std::int64_t next_ = 0;
};

inline double off_by(const Row& got, const std::vector<double>& want) {  // relative L2
  double off = 0, size = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double d = static_cast<double>(got[i]) - want[i];
    off += d * d;
    size += want[i] * want[i];
  }
  return std::sqrt(off / size);
}

inline void append(Row& to, const Row& from) { to.insert(to.end(), from.begin(), from.end()); }

inline void expect_bytes(const Row& got, const Row& want, const std::string& where) {
  ASSERT_EQ(got.size(), want.size()) << where;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(want[i]))
        << where << ": element " << i << ": got " << got[i] << ", expected " << want[i];
  }
}

}  // namespace nibble::test
