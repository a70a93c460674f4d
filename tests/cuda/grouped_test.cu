// GroupedLinear, ExpertRoute and ExpertCombine on the device: routes as the contract says, and each row of the case
// table (tests/cases/grouped_cases.h) has the bits of Linear on the row alone, with its expert's weight alone.
#include <numeric>

#include "backends/cuda/ops/linear_groups.cuh"
#include "tests/cuda/grouped_run.h"

namespace nibble::test {
namespace {

using cuda::ArchPath;

void expect_first(const DeviceArray<std::int32_t>& found, const std::vector<std::int32_t>& want, const char* what) {
  const std::vector<std::int32_t> all = found.download();
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(all[i], i < want.size() ? want[i] : -1) << what << " " << i;  // beyond: as they were
  }
}

TEST(CudaExperts, RouteAsTheContractSays) {
  NIBBLE_NEEDS_DEVICE();
  std::size_t index = 0;
  for (const RouteCase& r : route_cases()) {
    SCOPED_TRACE(route_text(r));
    const std::vector<float> logits = route_logits(r, 300 + index++);
    const RouteResult want = route_reference(r, logits);
    const Class c(r.t, r.per_token);
    const RoutedOnDevice found(c, r, logits);
    found.expect_whole();
    expect_first(found.ids, want.ids, "expert");
    expect_first(found.order, want.order, "order");
    expect_first(found.place, want.place, "place");
    expect_first(found.starts, want.starts, "start");
    const std::vector<float> weights = found.weights.download();
    for (std::size_t i = 0; i < want.weights.size(); ++i) ASSERT_TRUE(same_bits(weights[i], want.weights[i])) << i;
    if (HasFatalFailure()) return;
  }
}

TEST(CudaExperts, CombineAsTheContractSays) {
  NIBBLE_NEEDS_DEVICE();
  std::size_t index = 0;
  for (const CombineCase& k : combine_cases()) {
    SCOPED_TRACE(testing::Message() << "T " << k.t << " columns " << k.cols << " k " << k.per_token << " shared " << k.shared);
    const CombineInput in(k, 40 + index++);
    const std::vector<float> want = combine_reference(k, in);
    const Class c(k.t, k.per_token);
    const auto rows = [](const std::vector<float>& from, std::int64_t all, std::int64_t cols) {
      std::vector<float> more = from;
      more.resize(static_cast<std::size_t>(all * cols), std::nanf(""));
      return more;
    };
    DeviceMatrix<float> x(rows(in.x, c.places(), k.cols), c.places(), k.cols, 1);
    DeviceMatrix<float> weights(rows(in.weights, c.to.max_rows, k.per_token), c.to.max_rows, k.per_token, 2);
    DeviceMatrix<float> shared(rows(in.shared, c.to.max_rows, k.cols), c.to.max_rows, k.cols, 3);
    DeviceMatrix<float> gate(rows(in.gate, c.to.max_rows, 1), c.to.max_rows, 1, 4);
    DeviceArray<std::int32_t> place(in.place);
    DeviceMatrix<float> y(c.to.max_rows, k.cols, 5);
    cuda::ExpertCombineArgs a{x.view(Rows::routed), weights.view(), place.data(), {}, {}, y.view()};
    if (k.shared) {
      a.shared = shared.view();
      a.shared_gate = gate.view();
    }
    cuda::expert_combine(c.to, a);
    finish_device();
    ASSERT_EQ(y.damage(), "");
    const std::vector<float> found = y.download();
    for (std::size_t i = 0; i < found.size(); ++i) {
      ASSERT_TRUE(i < want.size() ? same_bits(found[i], want[i]) : found[i] != found[i]) << i;
    }
  }
}

// On the host: whatever the starts, the slots of a launch hold each sorted place once, in tiles of one expert.
TEST(GroupSlots, HoldEveryPlaceOnce) {
  const auto ballot = [](const auto& of) {
    std::uint32_t bits = 0;
    for (int i = 0; i < 32; ++i) bits |= of(i) ? 1u << i : 0u;
    return bits;
  };
  Hash random{3};
  for (int round = 0; round < 3000; ++round) {
    const int experts = 1 + static_cast<int>(random() % (round % 3 == 0 ? 1024 : 40));
    const std::uint32_t most = round % 5 == 0 ? 2 : round % 5 == 1 ? 300 : 20, rare = random() % 4 + 1;
    std::vector<std::int32_t> starts = {0};
    for (int e = 0; e < experts; ++e) {
      starts.push_back(starts.back() + static_cast<std::int32_t>(random() % rare == 0 ? random() % (most + 1) : 0));
    }
    for (const int tokens : {8, 16, 32, 64}) {
      for (const bool by_place : {false, true}) {
        // A class may have more places than the step.
        cuda::Launch to;
        to.max_rows = starts.back() + static_cast<std::int32_t>(random() % 30);
        to.experts_per_token = 1;
        const std::int64_t slots = by_place ? to.max_rows : cuda::group_slots(to, experts, tokens);
        std::vector<int> seen(static_cast<std::size_t>(starts.back()));
        for (std::int64_t slot = 0; slot < slots; ++slot) {
          const cuda::GroupRows g = cuda::group_rows(starts.data(), experts, slot, by_place, tokens, ballot);
          for (std::int64_t i = g.first; i < std::min(g.end, g.first + tokens); ++i) {
            ++seen[static_cast<std::size_t>(i)];
            ASSERT_TRUE(i >= starts[static_cast<std::size_t>(g.expert)] && i < starts[static_cast<std::size_t>(g.expert) + 1]);
          }
        }
        for (const int count : seen) ASSERT_EQ(count, 1) << experts << " experts, tiles of " << tokens;
      }
    }
  }
}

void check(const Combination& of, GroupedCase g, std::size_t index, ArchPath path) {
  if (path == ArchPath::sm70) g.linear.bf16_output = false;  // float32 always
  SCOPED_TRACE(grouped_text(of, g, index));
  auto owned = grouped_weights(of, g, index);
  const ExpertsOnDevice experts(owned, path);
  const LinearInput x = random_input(of, g.linear, kInputSeed + index, path);
  const ActivationFormat format = format_of(of.kind);
  // Rows of each class that a case's own would not reach: tiles by place and by slot, 16 to 64 rows.
  for (const std::int64_t more : {std::int64_t{0}, kMoreRows, std::int64_t{200}}) {
    if (more == 200 && (g.experts > 16 || index % 3 != 0)) continue;
    const Class c(g.t, g.per_token, more);
    if (c.to.max_rows == 0) continue;
    RoutedOnDevice routed(c, {g.experts, g.per_token, g.t, true}, grouped_logits(g, 77 + index));
    InputOnDevice input(x, of.kind, g.linear.k, g.by_place ? c.places() : c.to.max_rows, g.linear.gap, path);
    cuda::GroupedLinearArgs a;
    a.linear.format = format;
    a.linear.weight = experts.first();
    a.linear.path = path;
    input.fill(a.linear, g.by_place ? Rows::routed : Rows::tokens);
    a.order = routed.order.data();
    a.starts = routed.starts.data();
    a.experts = g.experts;
    a.expert_bytes = experts.each;
    EXPECT_NE(std::string(cuda::grouped_linear_kernel(c.to, a)).find("grouped"), std::string::npos);
    const std::vector<float> y = run_grouped(g.linear.bf16_output, c.to, a, g.places());
    const std::vector<std::int32_t> order = routed.order.download(), ids = routed.ids.download();
    const std::int64_t stride = std::max<std::int64_t>(1, g.places() / 24);
    for (std::int64_t i = 0; i < g.places(); i += stride) {
      const std::int32_t j = order[static_cast<std::size_t>(i)], e = ids[static_cast<std::size_t>(j)];
      const LinearInput row = row_of(x, g.by_place ? i : j / g.per_token);
      const auto first = y.begin() + i * g.linear.n;
      expect_same({first, first + g.linear.n},
                  run_linear(g.linear.bf16_output, experts.images[static_cast<std::size_t>(e)], format, row, 1, 0, path),
                  ("place " + std::to_string(i) + " of expert " + std::to_string(e)).c_str());
      if (testing::Test::HasFatalFailure()) return;
    }
    // And the mirror itself, at one place: Linear's own tests have the rest.
    if (g.places() == 0 || more != 0) continue;
    const std::int32_t j = order.front(), e = ids[static_cast<std::size_t>(j)];
    std::vector<std::int64_t> columns(static_cast<std::size_t>(g.linear.n));
    std::iota(columns.begin(), columns.end(), 0);
    std::vector<float> want;
    mirror_linear(owned[static_cast<std::size_t>(e)]->weight, format, row_of(x, g.by_place ? 0 : j / g.per_token), columns, want, path);
    for (float& v : want) v = g.linear.bf16_output ? num::bf16_to_float(num::float_to_bf16(v)) : v;
    expect_same({y.begin(), y.begin() + g.linear.n}, want, "the mirror");
  }
}

struct Tested {
  ArchPath path;
  Combination of;
};
std::vector<Tested> all_tested() {
  std::vector<Tested> all;
  for (const ArchPath path : {ArchPath::sm90, ArchPath::sm70}) {
    for (const Combination& c : combinations()) all.push_back({path, c});
  }
  for (const Combination& c : sm120_combinations()) all.push_back({ArchPath::sm120, c});
  return all;
}

class CudaGrouped : public testing::TestWithParam<Tested> {};

TEST_P(CudaGrouped, EqualsLinearOnEachRowAlone) {
  NIBBLE_NEEDS_DEVICE();
  const std::vector<GroupedCase> cases = grouped_cases_of(GetParam().of);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    check(GetParam().of, cases[i], i, GetParam().path);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaGrouped, testing::ValuesIn(all_tested()), [](const auto& tested) {
  const char* const path = tested.param.path == ArchPath::sm70 ? "sm70" : tested.param.path == ArchPath::sm90 ? "sm90" : "sm120";
  return std::string(path) + "_" + combination_name(tested.param.of);
});

}  // namespace
}  // namespace nibble::test
