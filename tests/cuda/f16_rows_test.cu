// f16_rows_test.cu: rows of f16 with an exponent, to and from float32, against host code.
#include <gtest/gtest.h>

#include <cmath>

#include "backends/cuda/ops/f16_rows.h"
#include "tests/cases/rows_cases.h"
#include "tests/cuda/step_on_device.h"
#include "tests/support/buffers.h"

namespace nibble::test {
namespace {

constexpr std::int64_t kBehind = 3;  // rows of the class beyond those of the step

int exponent_of_row(const float* v, std::int64_t cols) {
  float amax = 0;
  for (std::int64_t c = 0; c < cols; ++c) {
    if (std::isfinite(v[c])) amax = std::max(amax, std::fabs(v[c]));
  }
  return amax == 0 ? 0 : std::max(0, std::ilogb(amax) - 14);
}

struct Half {
  Half(std::int64_t rows, std::int64_t cols, std::int64_t gap)
      : values(rows, cols, gap), exponents(static_cast<std::size_t>(rows)) {}
  cuda::View view(Rows rows = Rows::tokens) {
    cuda::View v = values.view(rows);
    v.dtype = DType::f16;
    v.exponents = exponents.data();
    return v;
  }
  DeviceMatrix<std::uint16_t> values;
  DeviceArray<std::int32_t> exponents;
};

void round_trip(const Batch& batch, std::int64_t first, std::int64_t count, std::int64_t cols,
                const Section* section) {
  const std::int64_t all = batch.rows() + kBehind;
  const std::vector<float> values = rows_of_every_sort(all, cols);
  const StepOnDevice step(batch);
  cuda::Launch to;
  to.step = step.device();
  to.max_rows = all;
  DeviceMatrix<float> wide(values, all, cols), back(all, cols, 1);
  Half half(all, cols, 2);
  cuda::narrow_rows(to, {half.view(), wide.view()}, section);
  cuda::widen_rows(to, {half.view(), back.view()}, section);
  finish_device();
  EXPECT_EQ(half.values.damage() + half.exponents.damage() + back.damage(), "");
  const std::vector<std::uint16_t> h = half.values.download();
  const std::vector<std::int32_t> e = half.exponents.download();
  const std::vector<float> b = back.download();
  for (std::int64_t r = 0; r < all; ++r) {
    const bool written = r >= first && r < first + count;
    const auto at = static_cast<std::size_t>(r * cols);
    const int want_e = exponent_of_row(values.data() + at, cols);
    ASSERT_EQ(e[static_cast<std::size_t>(r)], written ? want_e : -1) << "row " << r;
    for (std::size_t i = at; i < at + static_cast<std::size_t>(cols); ++i) {
      if (!written) {
        ASSERT_EQ(h[i], 0xFFFFu) << "row " << r;
        continue;
      }
      const float scaled = std::ldexp(values[i], -want_e);
      float want = num::f16_to_float(num::float_to_f16(scaled));
      if (std::isinf(std::ldexp(want, want_e))) want = std::copysign(INFINITY, want);
      ASSERT_TRUE(same_bits(want, num::f16_to_float(h[i]))) << "row " << r << ": " << values[i];
      ASSERT_TRUE(same_bits(std::ldexp(want, want_e), b[i])) << "row " << r << ": " << values[i];
    }
  }
}

TEST(F16Rows, NarrowAndWiden) {
  NIBBLE_NEEDS_DEVICE();
  for (const std::int64_t cols : kF16Cols) {
    round_trip(plain_batch(std::vector<std::int32_t>(40)), 0, 40, cols, nullptr);
  }
}

TEST(F16Rows, OfOneSection) {
  NIBBLE_NEEDS_DEVICE();
  Batch b;
  b.tokens.resize(21);
  const std::pair<Section, std::int32_t> parts[] = {
      {Section::decode, 1}, {Section::decode, 1}, {Section::verify, 4}, {Section::prefill, 15}};
  std::int32_t row = 0;
  for (const auto& [section, rows] : parts) {
    Range r;
    r.section = section;
    r.first_row = row;
    r.rows = rows;
    b.ranges.push_back(r);
    row += rows;
  }
  const Section decode = Section::decode, verify = Section::verify, prefill = Section::prefill;
  round_trip(b, 0, 2, 70, &decode);
  round_trip(b, 2, 4, 70, &verify);
  round_trip(b, 6, 15, 70, &prefill);
}

TEST(F16Rows, GatherKeepsBits) {
  NIBBLE_NEEDS_DEVICE();
  Batch b = plain_batch(std::vector<std::int32_t>(9));
  b.output_rows = {8, 0, 3};
  const StepOnDevice step(b);
  cuda::Launch to;
  to.step = step.device();
  to.max_rows = 12;
  to.max_outputs = 5;
  Half x(12, 33, 1), y(5, 33, 4);
  std::vector<std::uint16_t> values(12 * 33);
  Hash random{2};
  for (auto& v : values) v = static_cast<std::uint16_t>(random());
  std::vector<std::int32_t> exponents(12);
  for (auto& e : exponents) e = static_cast<std::int32_t>(random() % 114);
  x.values.upload(values);
  x.exponents.upload(exponents);
  cuda::gather_f16_rows(to, x.view(), y.view(Rows::outputs));
  finish_device();
  EXPECT_EQ(y.values.damage() + y.exponents.damage(), "");
  const auto h = y.values.download();
  const auto e = y.exponents.download();
  for (std::size_t o = 0; o < 5; ++o) {
    const std::size_t from = o < 3 ? static_cast<std::size_t>(b.output_rows[o]) : 0;
    ASSERT_EQ(e[o], o < 3 ? exponents[from] : -1);
    for (std::size_t c = 0; c < 33; ++c) ASSERT_EQ(h[o * 33 + c], o < 3 ? values[from * 33 + c] : 0xFFFFu);
  }
}

}  // namespace
}  // namespace nibble::test
