// The delta rule's prefill rows on matrix units (core/numerics/delta_order.h) against the recurrence in float64, on
// inputs like a model's and on hard ones.
#include <cstdio>
#include <numbers>
#include <span>

#include "tests/cpu/delta_units_world.h"

namespace nibble::test {
namespace {

class DeltaUnitsAccuracy : public testing::TestWithParam<PrefillUnits> {};
INSTANTIATE_TEST_SUITE_P(All, DeltaUnitsAccuracy, testing::Values(PrefillUnits::sm90, PrefillUnits::sm70),
                         [](const auto& of) { return name_of(of.param); });

// As the profile's buffers hold them: bf16, or rows of f16 with an exponent.
Row rounded(const DeltaHead& h, Row y) {
  for (std::int64_t i = 0; i < h.rows; ++i) {
    const auto row = std::span(y).subspan(at(i * h.value_dim), at(h.value_dim));
    std::uint32_t most = 0;
    for (const float x : row) most = std::max(most, num::finite_magnitude(x));
    const int e = num::activation_exponent(most);
    for (float& x : row) {
      x = h.units == PrefillUnits::sm70 ? num::row_f16_to_float(num::activation_to_f16(x, e), e) : bf16(x);
    }
  }
  return y;
}

void expect_numbers(const DeltaHead& h, const Row& y, const std::string& where) {
  for (const Row* all : {&y, &h.s}) {
    for (const float x : *all) ASSERT_TRUE(std::isfinite(x)) << where;
  }
}

// Seen with gates of softplus * 1, 0.1, 0.01, 0, y rounded:
//   sm90  2.9e-3, 3.1e-3, 3.5e-3, 3.8e-3 (key_dim 32), 2.9e-3, 2.9e-3, 3.1e-3, 3.3e-3 (128). Rounding y alone: 1.7e-3
//   sm70  4.1e-4, 4.3e-4, 5.0e-4, 5.5e-4 (key_dim 32), 4.1e-4, 4.2e-4, 4.4e-4, 4.8e-4 (128). Rounding y alone: 2.1e-4
double bound_of(PrefillUnits units) { return units == PrefillUnits::sm70 ? 7e-4 : 4e-3; }

TEST_P(DeltaUnitsAccuracy, InputsLikeAModels) {
  for (const int dim : {32, 128}) {
    for (const float gate : {1.0f, 0.1f, 0.01f, 0.0f}) {
      DeltaHead h = like_a_model(dim, dim, 1024, gate, 21, GetParam());
      const std::vector<double> want = delta_in_float64(h);
      const Row y = run(isas_here().front(), h);
      const double off = off_by(rounded(h, y), want);
      const double rounding = off_by(rounded(h, Row(want.begin(), want.end())), want);
      std::printf("%s, key_dim %d, gates * %g: %.3g relative L2 from float64, %.3g before y is rounded, %.3g by that "
                  "alone\n",
                  name_of(h.units), dim, static_cast<double>(gate), off, off_by(y, want), rounding);
      EXPECT_LE(off, bound_of(h.units)) << dim << ", " << gate;
    }
  }
}

// A prompt of 32,768 rows: what a state has lost is lost for all that follow.
TEST_P(DeltaUnitsAccuracy, ALongPrompt) {
#if defined(__SANITIZE_ADDRESS__)
  constexpr int kRows = 2048;
#else
  constexpr int kRows = 32768;
#endif
  for (const float gate : {0.1f, 0.001f}) {
    DeltaHead h = like_a_model(32, 32, kRows, gate, 25, GetParam());
    const std::vector<double> want = delta_in_float64(h);
    const Row y = run(isas_here().front(), h);
    expect_numbers(h, y, "a long prompt");
    const Row held = rounded(h, y);
    const std::size_t last = want.size() - 1024 * 32;
    const double off = off_by(held, want),
                 end = off_by(Row(held.begin() + static_cast<std::ptrdiff_t>(last), held.end()),
                              {want.begin() + static_cast<std::ptrdiff_t>(last), want.end()});
    std::printf("%s, %d rows, gates * %g: %.3g relative L2 from float64, %.3g of the last 1,024\n", name_of(h.units),
                kRows, static_cast<double>(gate), off, end);
    EXPECT_LE(off, bound_of(h.units)) << gate;
    EXPECT_LE(end, bound_of(h.units)) << gate;
  }
}

void each_row(DeltaHead& h, Row& of, std::int64_t width, auto change) {
  for (std::int64_t i = 0; i < h.rows; ++i) change(i, of.data() + i * width);
}

struct Hard {
  const char* name;
  void (*make)(DeltaHead&);
  double sm90, sm70;  // bounds of the relative L2 error: what was measured, rounded up
  bool float_y = false;  // in sm70 of y before it is rounded, since f16 holds nothing below 2^-24
};
const Hard kHard[] = {
    {"gates -50 and 0",
     [](DeltaHead& h) {
       each_row(h, h.g, 1, [](std::int64_t i, float* g) { *g = noise(3, i, 0) < 0 ? -50.0f : 0.0f; });
     },
     3.5e-3, 5e-4},
    {"gates to -1e4",
     [](DeltaHead& h) {
       each_row(h, h.g, 1, [](std::int64_t i, float* g) { *g = -1e4f * std::fabs(noise(3, i, 0)); });
     },
     3.5e-3, 5e-4},
    {"beta 0 and 1",
     [](DeltaHead& h) {
       each_row(h, h.beta, 1, [](std::int64_t i, float* beta) { *beta = noise(4, i, 0) < 0 ? 0.0f : 1.0f; });
     },
     3.5e-3, 5e-4},
    {"one key",
     [](DeltaHead& h) {
       each_row(h, h.k, h.key_dim, [&](auto, float* key) { std::copy_n(h.k.data(), h.key_dim, key); });
     },
     7e-3, 1e-3},
    {"one key, no decay, beta 1",
     [](DeltaHead& h) {
       each_row(h, h.k, h.key_dim, [&](auto, float* key) { std::copy_n(h.k.data(), h.key_dim, key); });
       std::fill(h.g.begin(), h.g.end(), 0.0f);
       std::fill(h.beta.begin(), h.beta.end(), 1.0f);
     },
     2e-2, 7e-3},
    {"keys of a plane, no decay",
     [](DeltaHead& h) {
       const Row a = Normal(31).unit(h.key_dim, 1.0f), b = Normal(32).unit(h.key_dim, 1.0f);
       each_row(h, h.k, h.key_dim, [&](std::int64_t i, float* key) {
         const float x = std::numbers::pi_v<float> * noise(6, i, 0);
         float sum = 0;
         for (std::int64_t e = 0; e < h.key_dim; ++e) {
           key[e] = std::cos(x) * a[at(e)] + std::sin(x) * b[at(e)];
           sum += key[e] * key[e];
         }
         for (std::int64_t e = 0; e < h.key_dim; ++e) key[e] = bf16(key[e] / std::sqrt(sum));
       });
       std::fill(h.g.begin(), h.g.end(), 0.0f);
     },
     1.2e-2, 1.6e-3},
    {"values with outliers",
     [](DeltaHead& h) {
       for (std::size_t i = 0; i < h.v.size(); ++i) {
         if (noise(7, static_cast<std::int64_t>(i), 0) > 0.98f) h.v[i] = bf16(1e3f * h.v[i]);
       }
     },
     3.5e-3, 5e-4},
    {"values to 1e4",
     [](DeltaHead& h) {
       for (std::size_t i = 0; i < h.v.size(); ++i) h.v[i] = bf16(1e4f * noise(8, static_cast<std::int64_t>(i), 0));
     },
     3.5e-3, 5e-4},
    {"values of 1e-6",
     [](DeltaHead& h) {
       for (float& x : h.v) x = bf16(1e-6f * x);
     },
     3.5e-3, 5e-4, true},
    {"chunks that end in a gate of -15",
     [](DeltaHead& h) {
       for (std::size_t i = 63; i < h.g.size(); i += 64) h.g[i] = -15.0f;
     },
     3.5e-3, 5e-4},
};

TEST_P(DeltaUnitsAccuracy, HardInputs) {
  for (const int dim : {32, 128}) {
    for (const Hard& hard : kHard) {
      DeltaHead h = like_a_model(dim, dim, 512, 0.1f, 22, GetParam());
      hard.make(h);
      round_rows(h);
      const std::vector<double> want = delta_in_float64(h);
      const Row y = run(isas_here().front(), h);
      expect_numbers(h, y, hard.name);
      const double held = off_by(rounded(h, y), want), bare = off_by(y, want);
      std::printf("%s, key_dim %d, %s: %.3g relative L2 from float64, %.3g before y is rounded\n", name_of(h.units), dim,
                  hard.name, held, bare);
      const bool sm70 = h.units == PrefillUnits::sm70;
      EXPECT_LE(sm70 && hard.float_y ? bare : held, sm70 ? hard.sm70 : hard.sm90) << dim << ", " << hard.name;
    }
  }
}

// States that fade below 2^-100 leave the chains' ordinary way.
TEST_P(DeltaUnitsAccuracy, HardInputsAreTheContract) {
  for (const Hard& hard : kHard) {
    DeltaHead h = like_a_model(32, 40, 130, 0.1f, 23, GetParam());
    h.position = 50;
    h.s = Normal(5).row(32 * 40, 0.3f);
    hard.make(h);
    round_rows(h);
    expect_contract(h, some_records(h, 1), hard.name);
  }
}

}  // namespace
}  // namespace nibble::test
