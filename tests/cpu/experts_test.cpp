// ExpertRoute and ExpertCombine against the text of their contracts, by bits: shapes x logits of every sort x
// instruction sets x threads; and against softmax in double.
#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>

#include <set>

#include "backends/cpu/ops/experts.h"
#include "tests/cases/route_cases.h"
#include "tests/support/buffers.h"

namespace nibble::test {
namespace {

using cpu::Isa;
using cpu::Parallel;

const oneapi::tbb::global_control kThreads(oneapi::tbb::global_control::max_allowed_parallelism, 4);

RouteResult run(Isa isa, Parallel& parallel, const RouteCase& c, const std::vector<float>& logits) {
  constexpr std::int32_t kUnset = -7;
  const auto pairs = static_cast<std::size_t>(c.t * c.per_token);
  RouteResult r{std::vector<float>(pairs, std::nanf("")), std::vector<std::int32_t>(pairs, kUnset),
                std::vector<std::int32_t>(pairs, kUnset), std::vector<std::int32_t>(pairs, kUnset),
                std::vector<std::int32_t>(static_cast<std::size_t>(c.experts) + 1, kUnset)};
  cpu::expert_route(isa, parallel,
                    {c.t, c.experts, c.per_token, c.normalised, {logits.data(), c.experts},
                     {r.weights.data(), c.per_token}, r.ids.data(), r.order.data(), r.place.data(), r.starts.data()});
  return r;
}

void expect_equal(const RouteResult& a, const RouteResult& b) {
  ASSERT_EQ(a.ids, b.ids);
  ASSERT_EQ(a.order, b.order);
  ASSERT_EQ(a.place, b.place);
  ASSERT_EQ(a.starts, b.starts);
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (std::size_t i = 0; i < a.weights.size(); ++i) {
    ASSERT_TRUE(same_bits(a.weights[i], b.weights[i])) << i << ": " << a.weights[i] << " and " << b.weights[i];
  }
}

TEST(ExpertRoute, EqualsTheContract) {
  Parallel one(1), three(3);
  std::size_t index = 0;
  for (const RouteCase& c : route_cases()) {
    SCOPED_TRACE(route_text(c));
    const std::vector<float> logits = route_logits(c, 300 + index++);
    const RouteResult want = route_reference(c, logits);
    for (const Isa isa : cpu::available_isas()) {
      for (Parallel* parallel : {&one, &three}) {
        expect_equal(run(isa, *parallel, c, logits), want);
        if (HasFatalFailure()) return;
      }
    }
  }
  EXPECT_GE(index, 190u);
}

// Whatever the logits: weights are numbers from 0 to 1 and ids are different ones.
TEST(ExpertRoute, WeightsAreFiniteAndExpertsDiffer) {
  Parallel one(1);
  const RouteCase c{64, 8, 140, true};
  const RouteResult r = run(cpu::available_isas().front(), one, c, route_logits(c, 9));
  for (std::int64_t t = 0; t < c.t; ++t) {
    std::set<std::int32_t> ids;
    double sum = 0;
    for (std::int64_t s = 0; s < c.per_token; ++s) {
      const auto at = static_cast<std::size_t>(t * c.per_token + s);
      ids.insert(r.ids[at]);
      sum += static_cast<double>(r.weights[at]);
      EXPECT_GE(r.weights[at], 0.0f) << t;
      EXPECT_LE(r.weights[at], 1.0f) << t;
    }
    EXPECT_EQ(ids.size(), 8u);
    EXPECT_NEAR(sum, 1, 1e-6) << t;
  }
}

std::vector<std::int32_t> chosen(const std::vector<float>& logits, std::int32_t k) {
  Parallel one(1);
  return run(Isa::portable, one, {static_cast<std::int32_t>(logits.size()), k, 1, false}, logits).ids;
}

TEST(ExpertRoute, TheRules) {
  using Ids = std::vector<std::int32_t>;
  const float nan = std::nanf("");
  EXPECT_EQ(chosen({1, 3, 3, 2, 3}, 4), (Ids{1, 2, 4, 3}));        // the lower id among equals
  EXPECT_EQ(chosen({-0.0f, 0.0f, -0.0f}, 2), (Ids{0, 1}));         // zeros are equal
  EXPECT_EQ(chosen({nan, -1, nan, -INFINITY}, 4), (Ids{1, 0, 2, 3}));  // NaN is -inf
  EXPECT_EQ(chosen({nan, nan, nan}, 2), (Ids{0, 1}));
  Parallel one(1);
  const auto weights = [&](const std::vector<float>& z, std::int32_t k, bool normalised) {
    return run(Isa::portable, one, {static_cast<std::int32_t>(z.size()), k, 1, normalised}, z).weights;
  };
  EXPECT_EQ(weights({5, INFINITY, 2, INFINITY}, 3, true), (std::vector<float>{0.5f, 0.5f, 0}));
  EXPECT_EQ(weights({nan, nan, nan, nan}, 2, false), (std::vector<float>{0.25f, 0.25f}));
  EXPECT_EQ(weights({nan, nan, nan, nan}, 2, true), (std::vector<float>{0.5f, 0.5f}));
}

// A row's choice is that of the row alone.
TEST(ExpertRoute, RowsDoNotFeelEachOther) {
  Parallel three(3);
  const RouteCase c{60, 4, 56, true};
  const std::vector<float> logits = route_logits(c, 12);
  const RouteResult all = run(cpu::available_isas().front(), three, c, logits);
  for (std::int64_t t = 0; t < c.t; ++t) {
    const RouteResult alone = run(Isa::portable, three, {60, 4, 1, true},
                                  {logits.begin() + t * 60, logits.begin() + (t + 1) * 60});
    for (std::size_t s = 0; s < 4; ++s) {
      EXPECT_EQ(alone.ids[s], all.ids[static_cast<std::size_t>(t) * 4 + s]);
      EXPECT_TRUE(same_bits(alone.weights[s], all.weights[static_cast<std::size_t>(t) * 4 + s]));
    }
  }
}

TEST(ExpertRoute, IsSoftmaxInDouble) {
  Parallel one(1);
  double worst = 0;
  for (const bool normalised : {false, true}) {
    const RouteCase c{512, 10, 200, normalised};
    Hash random{4};
    std::vector<float> z;
    for (std::int64_t i = 0; i < c.t * c.experts; ++i) z.push_back(static_cast<float>(random() % 100000) * 1e-4f);
    const RouteResult r = run(cpu::available_isas().front(), one, c, z);
    for (std::int64_t t = 0; t < c.t; ++t) {
      const auto value = [&](std::int64_t e) { return std::exp(static_cast<double>(z[static_cast<std::size_t>(t * 512 + e)])); };
      double total = 0;
      for (std::int64_t i = 0; i < (normalised ? 10 : 512); ++i) {
        total += value(normalised ? r.ids[static_cast<std::size_t>(t * 10 + i)] : i);
      }
      for (std::int64_t s = 0; s < 10; ++s) {
        const auto at = static_cast<std::size_t>(t * 10 + s);
        worst = std::max(worst, std::abs(static_cast<double>(r.weights[at]) / (value(r.ids[at]) / total) - 1));
      }
    }
  }
  RecordProperty("relative", std::to_string(worst * 0x1p24) + " x 2^-24");
  EXPECT_LE(worst, 8 * 0x1p-24);
}

TEST(ExpertCombine, EqualsTheContract) {
  Parallel one(1), three(3);
  std::size_t index = 0;
  for (const CombineCase& c : combine_cases()) {
    SCOPED_TRACE(testing::Message() << "T " << c.t << " columns " << c.cols << " k " << c.per_token << " shared " << c.shared);
    const CombineInput in(c, 40 + index++);
    const std::vector<float> want = combine_reference(c, in);
    for (const Isa isa : cpu::available_isas()) {
      for (Parallel* parallel : {&one, &three}) {
        Guarded y(c.t, c.cols);
        cpu::ExpertCombineArgs a{c.t, c.cols, c.per_token, {in.x.data(), c.cols}, {in.weights.data(), c.per_token},
                                 in.place.data(), {}, {}, {y.data(), y.stride()}};
        if (c.shared) {
          a.shared = {in.shared.data(), c.cols};
          a.shared_gate = {in.gate.data(), 1};
        }
        cpu::expert_combine(isa, *parallel, a);
        ASSERT_EQ(y.damage(), "");
        for (std::size_t i = 0; i < want.size(); ++i) {
          const auto col = static_cast<std::int64_t>(i);
          ASSERT_TRUE(same_bits(y.at(col / c.cols, col % c.cols), want[i])) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace nibble::test
