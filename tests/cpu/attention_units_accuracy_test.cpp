// Attention's prefill rows on matrix units (core/numerics/attention_order.h) against softmax in float64, on inputs like
// a model's and on hard ones.
#include <cstdio>

#include "tests/cpu/attention_units_world.h"

namespace nibble::test {
namespace {

Row as_bf16(Row y) {
  for (float& x : y) x = bf16(x);
  return y;
}
// Of y as its buffer holds it.
double measured(const AttentionRows& r, const std::string& name) {
  const std::vector<double> want = attention_in_float64(r.head(0));
  const Row y = run(isas_here().front(), r);
  const auto rounded = [&](Row x) {
    if (!r.sm70) return as_bf16(std::move(x));
    for (float& v : x) v = f16(v);  // no row of these is large
    return x;
  };
  const double off = off_by(rounded(y), want);
  std::printf("%s: %.3g relative L2 from float64, %.3g before y is rounded, %.3g by that alone\n", name.c_str(), off,
              off_by(y, want), off_by(rounded(Row(want.begin(), want.end())), want));
  for (const float x : y) EXPECT_TRUE(std::isfinite(x)) << name;
  return off;
}

// Seen with scores of about 0.1, 1, 4: 1.96e-3, 1.93e-3, 1.72e-3 (head_dim 64), 1.95e-3, 1.98e-3, 1.72e-3 (128),
// 1.98e-3, 1.97e-3, 1.73e-3 (256). Rounding y alone: 1.5e-3 to 1.7e-3.
TEST(AttentionUnitsAccuracy, InputsLikeAModels) {
  for (const int dim : {64, 128, 256}) {
    for (const float sharp : {0.1f, 1.0f, 4.0f}) {
      AttentionRows r = like_a_model({1, 1, dim}, 0, 512, 21);
      r.scale *= sharp;
      char name[64];
      std::snprintf(name, sizeof name, "head_dim %d, scores of about %g", dim, static_cast<double>(sharp));
      EXPECT_LE(measured(r, name), 2.2e-3) << name;
    }
  }
}

// Keys, queries and values of float32 are rounded to f16 as well. Seen: 3.4e-4, 4.2e-4, 6.9e-4 (64), 3.3e-4, 4.2e-4, 7.2e-4
// (128), 3.3e-4, 4.0e-4, 6.6e-4 (256); 2.1e-4 of it by rounding y.
TEST(AttentionUnitsAccuracy, InputsLikeAModelsSm70) {
  for (const int dim : {64, 128, 256}) {
    for (const float sharp : {0.1f, 1.0f, 4.0f}) {
      AttentionRows r = like_a_model({1, 1, dim}, 0, 512, 21, true);
      r.scale *= sharp;
      char name[64];
      std::snprintf(name, sizeof name, "sm70, head_dim %d, scores of about %g", dim, static_cast<double>(sharp));
      EXPECT_LE(measured(r, name), 8e-4) << name;
    }
  }
}

struct Hard {
  const char* name;
  void (*make)(AttentionRows&);
  double bound;  // of the relative L2 error: what was measured, rounded up
};
const Hard kHard[] = {
    {"as they are", [](AttentionRows&) {}, 2.5e-3},
    {"one huge score",
     [](AttentionRows& r) {
       for (std::int64_t d = 0; d < r.shape.head_dim; ++d) {
         r.k[at(77 * r.shape.head_dim + d)] = 3.0f;
         for (std::int64_t i = 0; i < r.rows; ++i) {
           float& q = r.q[at(i * r.shape.head_dim + d)];
           q = std::fabs(q);
         }
       }
     },
     5e-4},
    {"equal scores", [](AttentionRows& r) { std::fill(r.q.begin(), r.q.end(), 0.0f); }, 1.8e-3},
    {"scores that rise",
     [](AttentionRows& r) {
       for (std::int64_t i = 0; i < r.rows; ++i) r.q[at(i * r.shape.head_dim)] = 4.0f;
       for (std::int64_t j = 0; j < 4096; ++j) {
         r.k[at(j * r.shape.head_dim)] = bf16(0.01f * static_cast<float>(j));
       }
     },
     2.5e-3},
    {"values of one sign",
     [](AttentionRows& r) {
       for (float& v : r.v) v = std::fabs(v);
     },
     1.6e-3},
};
TEST(AttentionUnitsAccuracy, HardInputsOf4096Keys) {
  for (const bool sm70 : {false, true}) {
    for (const int dim : {64, 256}) {
      for (const Hard& hard : kHard) {
        AttentionRows r = like_a_model({1, 1, dim}, 4096 - 64, 64, 22, sm70);
        hard.make(r);
        const std::string name = "head_dim " + std::to_string(dim) + ", 4,096 keys, " + hard.name + (sm70 ? ", sm70" : "");
        EXPECT_LE(measured(r, name), sm70 ? 6e-4 : hard.bound) << name;
      }
    }
  }
}

TEST(AttentionUnitsAccuracy, HardInputsAreTheContract) {
  for (const Hard& hard : kHard) {
    AttentionRows r = like_a_model({1, 1, 64}, 4096 - 17, 17, 23);
    hard.make(r);
    expect_contract(r, hard.name);
  }
}

}  // namespace
}  // namespace nibble::test
