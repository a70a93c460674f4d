// The delta rule's prefill rows on matrix units (core/numerics/delta_order.h) against the recurrence in float64, on
// inputs like a model's and on hard ones.
#include <cstdio>
#include <numbers>

#include "tests/cpu/delta_units_world.h"

namespace nibble::test {
namespace {

double off_by(const Row& got, const std::vector<double>& want) {  // relative L2 of y as bf16 has it
  double off = 0, size = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double d = static_cast<double>(bf16(got[i])) - want[i];
    off += d * d;
    size += want[i] * want[i];
  }
  return std::sqrt(off / size);
}

// Seen with gates of softplus * 1, 0.1, 0.01, 0: 2.9e-3, 3.1e-3, 3.5e-3, 3.8e-3 (key_dim 32), 2.9e-3, 2.9e-3, 3.1e-3,
// 3.3e-3 (128). Rounding y alone: 1.7e-3.
TEST(DeltaUnitsAccuracy, InputsLikeAModels) {
  for (const int dim : {32, 128}) {
    for (const float gate : {1.0f, 0.1f, 0.01f, 0.0f}) {
      DeltaHead h = like_a_model(dim, dim, 1024, gate, 21);
      const std::vector<double> want = delta_in_float64(h);
      const double off = off_by(run(isas_here().front(), h), want);
      const double rounding = off_by(Row(want.begin(), want.end()), want);
      std::printf("key_dim %d, gates * %g: %.3g relative L2 from float64, of that rounding y %.3g\n", dim,
                  static_cast<double>(gate), off, rounding);
      EXPECT_LE(off, 4e-3) << dim << ", " << gate;
    }
  }
}

void each_row(DeltaHead& h, Row& of, std::int64_t width, auto change) {
  for (std::int64_t i = 0; i < h.rows; ++i) change(i, of.data() + i * width);
}

struct Hard {
  const char* name;
  void (*make)(DeltaHead&);
  double bound;  // of the relative L2 error: what was measured, rounded up
};
const Hard kHard[] = {
    {"gates -50 and 0",
     [](DeltaHead& h) {
       each_row(h, h.g, 1, [](std::int64_t i, float* g) { *g = noise(3, i, 0) < 0 ? -50.0f : 0.0f; });
     },
     3.5e-3},
    {"gates to -1e4",
     [](DeltaHead& h) {
       each_row(h, h.g, 1, [](std::int64_t i, float* g) { *g = -1e4f * std::fabs(noise(3, i, 0)); });
     },
     3.5e-3},
    {"beta 0 and 1",
     [](DeltaHead& h) {
       each_row(h, h.beta, 1, [](std::int64_t i, float* beta) { *beta = noise(4, i, 0) < 0 ? 0.0f : 1.0f; });
     },
     3.5e-3},
    {"one key",
     [](DeltaHead& h) {
       each_row(h, h.k, h.key_dim, [&](auto, float* key) { std::copy_n(h.k.data(), h.key_dim, key); });
     },
     7e-3},
    {"one key, no decay, beta 1",
     [](DeltaHead& h) {
       each_row(h, h.k, h.key_dim, [&](auto, float* key) { std::copy_n(h.k.data(), h.key_dim, key); });
       std::fill(h.g.begin(), h.g.end(), 0.0f);
       std::fill(h.beta.begin(), h.beta.end(), 1.0f);
     },
     2e-2},
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
     1.2e-2},
    {"values with outliers",
     [](DeltaHead& h) {
       for (std::size_t i = 0; i < h.v.size(); ++i) {
         if (noise(7, static_cast<std::int64_t>(i), 0) > 0.98f) h.v[i] = bf16(1e3f * h.v[i]);
       }
     },
     3.5e-3},
    {"values to 1e4",
     [](DeltaHead& h) {
       for (std::size_t i = 0; i < h.v.size(); ++i) h.v[i] = bf16(1e4f * noise(8, static_cast<std::int64_t>(i), 0));
     },
     3.5e-3},
};

TEST(DeltaUnitsAccuracy, HardInputs) {
  for (const int dim : {32, 128}) {
    for (const Hard& hard : kHard) {
      DeltaHead h = like_a_model(dim, dim, 512, 0.1f, 22);
      hard.make(h);
      const std::vector<double> want = delta_in_float64(h);
      const Row y = run(isas_here().front(), h);
      for (const Row* all : {&y, static_cast<const Row*>(&h.s)}) {
        for (const float x : *all) ASSERT_TRUE(std::isfinite(x)) << hard.name;
      }
      const double off = off_by(y, want);
      std::printf("key_dim %d, %s: %.3g relative L2 from float64\n", dim, hard.name, off);
      EXPECT_LE(off, hard.bound) << dim << ", " << hard.name;
    }
  }
}

// States that fade below 2^-100 leave the chains' ordinary way.
TEST(DeltaUnitsContract, HardInputsAreTheContract) {
  for (const Hard& hard : kHard) {
    DeltaHead h = like_a_model(32, 40, 130, 0.1f, 23);
    h.position = 50;
    h.s = Normal(5).row(32 * 40, 0.3f);
    hard.make(h);
    expect_contract(h, some_records(h, 1), hard.name);
  }
}

}  // namespace
}  // namespace nibble::test
