// GroupedLinear against Linear on each row alone, by bytes: the whole case table in every profile.
#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>

#include <cmath>
#include <limits>
#include <set>

#include "backends/cpu/ops/experts.h"
#include "backends/cpu/ops/linear_fused.h"
#include "tests/cases/grouped_cases.h"
#include "tests/support/buffers.h"

namespace nibble::test {
namespace {

using cpu::Isa;
using cpu::Parallel;
using cpu::Profile;

const oneapi::tbb::global_control kThreads(oneapi::tbb::global_control::max_allowed_parallelism, 4);

struct Routed {
  std::vector<std::int32_t> ids, order, place, starts;
  std::vector<float> weights;

  Routed(const GroupedCase& g, const std::vector<float>& logits, Isa isa, Parallel& parallel)
      : ids(at(g.places())), order(ids.size()), place(ids.size()), starts(at(g.experts) + 1), weights(ids.size()) {
    cpu::expert_route(isa, parallel,
                      {g.t, g.experts, g.per_token, true, {logits.data(), g.experts}, {weights.data(), g.per_token},
                       ids.data(), order.data(), place.data(), starts.data()});
  }
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
};

// What the profile's buffers hold, as the CPU's do.
struct WideInput {
  LinearInput stored;
  std::vector<float> wide;
  std::int64_t cols = 0;

  WideInput(const Combination& c, const GroupedCase& g, std::size_t index, Profile profile) : cols(g.linear.k) {
    const bool f16 = profile == Profile::sm70;
    stored = random_input(c, g.linear, kInputSeed + index, f16 ? cuda::ArchPath::sm70 : cuda::ArchPath::sm90);
    if (f16) put_in_float32(stored);
    for (std::size_t i = 0; i < stored.values.size(); ++i) {
      wide.push_back(f16 ? std::ldexp(num::f16_to_float(stored.values[i]),
                                      stored.exponents[i / static_cast<std::size_t>(cols)])
                         : num::bf16_to_float(stored.values[i]));
    }
  }
  cpu::LinearArgs rows(const ActivationFormat& format, std::int64_t first) const {
    cpu::LinearArgs a;
    a.format = format;
    const auto of = [first](const auto& all, std::int64_t width) { return all.data() + first * width; };
    a.x_stride = format.kind == Kind::nvfp4_static ? cols / 2 : cols;
    if (format.kind == Kind::none) {
      a.x = of(wide, cols);
      if (!stored.exponents.empty()) a.x_exponents = of(stored.exponents, 1);
      return a;
    }
    a.codes = of(stored.codes, a.x_stride);
    a.scale_stride = format.kind == Kind::nvfp4_static ? cols / 16 : format.kind == Kind::fp8_token ? 1 : (cols + 127) / 128;
    if (format.kind == Kind::nvfp4_static) a.scales = of(stored.byte_scales, a.scale_stride);
    if (format.kind == Kind::fp8_token || format.kind == Kind::fp8_token_group128) a.scales = of(stored.scales, a.scale_stride);
    return a;
  }
};

struct PackedExperts {
  std::vector<std::unique_ptr<Aligned>> arenas;
  std::vector<cpu::PackedWeight> weights;
  PackedExperts(const std::vector<std::unique_ptr<OwnedWeight>>& from, Profile profile, Isa isa, Parallel& parallel) {
    const cpu::WeightOperand operand = cpu::weight_operand(profile);
    for (const auto& w : from) {
      arenas.push_back(std::make_unique<Aligned>(cpu::packed_bytes(w->weight, operand)));
      weights.push_back(cpu::pack(w->weight, arenas.back()->data, parallel, cpu::nibble_order(isa), operand));
    }
  }
};

void check(const Combination& c, const GroupedCase& g, std::size_t index, Profile profile) {
  SCOPED_TRACE(grouped_text(c, g, index));
  static Parallel one(1), three(3);
  Parallel& parallel = index % 2 == 0 ? three : one;
  const std::vector<cpu::Kernels> all_kernels = cpu::available_kernels(profile == Profile::bf16);
  const cpu::Kernels kernels = all_kernels[index % all_kernels.size()];
  const Isa isa = kernels.isa;
  const Routed routed(g, grouped_logits(g, 77 + index), isa, parallel);
  const auto owned = grouped_weights(c, g, index);
  const PackedExperts packed(owned, profile, isa, one);
  const WideInput x(c, g, index, profile);
  const ActivationFormat format = format_of(c.kind);
  const std::int64_t n = g.linear.n;
  const Aligned workspace(static_cast<std::uint64_t>(
      cpu::any_linear_workspace_bytes(profile, kernels, parallel.threads(), g.places() + 1, g.linear.k, format)));
  const Aligned gather(static_cast<std::uint64_t>(cpu::grouped_gather_bytes(g.linear.k)));

  Guarded y(g.places(), n, g.linear.gap);
  cpu::GroupedLinearArgs a;
  a.linear = x.rows(format, 0);
  a.linear.y = y.data();
  a.linear.y_stride = y.stride();
  a.linear.workspace = workspace.data;
  a.weights = packed.weights;
  a.order = routed.order.data();
  a.starts = routed.starts.data();
  a.per_token = g.by_place ? 0 : g.per_token;
  a.gather = gather.data;
  cpu::grouped_linear(profile, kernels, parallel, a);
  ASSERT_EQ(y.damage(), "");

  std::vector<float> alone(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < g.places(); ++i) {
    const std::int32_t j = routed.order[static_cast<std::size_t>(i)], e = routed.ids[static_cast<std::size_t>(j)];
    cpu::LinearArgs row = x.rows(format, g.by_place ? i : j / g.per_token);
    row.weight = &packed.weights[static_cast<std::size_t>(e)];
    row.rows = 1;
    row.y = alone.data();
    row.y_stride = n;
    row.workspace = workspace.data;
    std::fill(alone.begin(), alone.end(), std::numeric_limits<float>::quiet_NaN());
    cpu::any_linear(profile, kernels, one, row);
    for (std::int64_t c0 = 0; c0 < n; ++c0) {
      ASSERT_TRUE(same_bits(y.at(i, c0), alone[static_cast<std::size_t>(c0)]))
          << "place " << i << " of expert " << e << ", column " << c0 << ": " << y.at(i, c0) << " and "
          << alone[static_cast<std::size_t>(c0)];
    }
  }
}

struct Tested {
  Profile profile;
  Combination of;
};
std::vector<Tested> all_tested() {
  std::vector<Tested> all;
  for (const Profile p : {Profile::f32, Profile::bf16, Profile::sm90, Profile::sm70}) {
    for (const Combination& c : combinations()) all.push_back({p, c});
  }
  for (const Combination& c : sm120_combinations()) all.push_back({Profile::sm120, c});
  return all;
}
std::string tested_name(const testing::TestParamInfo<Tested>& tested) {
  return std::string(cpu::profile_name(tested.param.profile)) + "_" + combination_name(tested.param.of);
}

class GroupedTable : public testing::TestWithParam<Tested> {};

TEST_P(GroupedTable, EqualsLinearOnEachRowAlone) {
  const std::vector<GroupedCase> cases = grouped_cases_of(GetParam().of);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    check(GetParam().of, cases[i], i, GetParam().profile);
    if (HasFatalFailure()) return;
  }
  RecordProperty("cases", static_cast<int>(cases.size()));
}

INSTANTIATE_TEST_SUITE_P(All, GroupedTable, testing::ValuesIn(all_tested()), tested_name);

// Rows of one expert come together a few hundred at a time.
TEST(GroupedLinear, MoreRowsThanAreGatheredAtOnce) {
  for (const Profile profile : {Profile::f32, Profile::bf16, Profile::sm70, Profile::sm90}) {
    for (const Combination& c : combinations()) {
      GroupedCase g{3, 1, 2 * cpu::kOperandRows + 70, Spread::one, false, {3, 32, 0, false, false, 0}};
      g.linear.t = g.t;
      check(c, g, 1000, profile);
      if (HasFatalFailure()) return;
    }
  }
}

// The table holds what it is for, and enough of it.
TEST(GroupedCases, HoldEverySort) {
  std::size_t count = 0;
  Parallel one(1);
  for (const Combination& c : combinations()) {
    const auto cases = grouped_cases_of(c);
    count += cases.size();
    int empty = 0, none_empty = 0, all_on_one = 0, no_tokens = 0, one_token = 0, one_expert = 0, odd_n = 0, every = 0;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const GroupedCase& g = cases[i];
      const Routed r(g, grouped_logits(g, 77 + i), Isa::portable, one);
      const std::set<std::int32_t> used(r.ids.begin(), r.ids.end());
      const auto served = static_cast<std::int32_t>(used.size());
      ++(served < g.experts ? empty : none_empty);
      all_on_one += g.t > 1 && g.experts > 1 && served == 1;
      no_tokens += g.t == 0;
      one_token += g.t == 1;
      one_expert += g.experts == 1;
      odd_n += g.linear.n % 2;
      every += g.per_token == g.experts && g.experts > 1;
    }
    for (const int seen : {empty, none_empty, all_on_one, no_tokens, one_token, one_expert, odd_n, every}) EXPECT_GE(seen, 2);
  }
  EXPECT_GE(count, 880u);
}

}  // namespace
}  // namespace nibble::test
