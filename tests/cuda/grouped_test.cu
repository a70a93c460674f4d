// GroupedLinear, ExpertRoute and ExpertCombine on the device: routes as the contract says, and each row of the case
// table (tests/cases/grouped_cases.h) has the bits of Linear on the row alone, with its expert's weight alone.
#include <numeric>

#include "backends/cuda/ops/experts.h"
#include "backends/cuda/ops/linear_groups.cuh"
#include "tests/cases/grouped_cases.h"
#include "tests/cases/route_cases.h"
#include "tests/cuda/linear_run.h"

namespace nibble::test {
namespace {

using cuda::ArchPath;

constexpr std::int64_t kMoreRows = 3;  // that a class has beyond the step's

std::vector<std::int32_t> no_tokens(std::int64_t rows) { return std::vector<std::int32_t>(static_cast<std::size_t>(rows)); }

// The class's launch for `t` tokens of at most t + kMoreRows.
struct Class {
  Class(std::int64_t t, std::int32_t per_token, std::int64_t more = kMoreRows)
      : step(plain_batch(no_tokens(t)), nullptr, per_token) {
    to.step = step.device();
    to.max_rows = t + more;
    to.multiprocessors = multiprocessors();
    to.experts_per_token = per_token;
  }
  StepOnDevice step;
  cuda::Launch to;
  std::int64_t places() const { return to.max_of(Rows::routed); }
};

template <class T>
DeviceArray<T> room(std::int64_t count) { return DeviceArray<T>(static_cast<std::size_t>(count)); }

struct RoutedOnDevice {
  DeviceMatrix<float> logits, weights;
  DeviceArray<std::int32_t> ids, order, place, starts;

  RoutedOnDevice(const Class& c, const RouteCase& r, std::vector<float> z)
      : logits(c.to.max_rows, r.experts, 5),
        weights(c.to.max_rows, r.per_token, 2),
        ids(room<std::int32_t>(c.places())),
        order(room<std::int32_t>(c.places())),
        place(room<std::int32_t>(c.places())),
        starts(room<std::int32_t>(r.experts + 1)) {
    z.resize(static_cast<std::size_t>(c.to.max_rows * r.experts), std::nanf(""));
    logits.upload(z);
    cuda::expert_route(c.to, {logits.view(), r.normalised, weights.view(), ids.data(), order.data(), place.data(), starts.data()});
    finish_device();
  }
  void expect_whole() const {
    EXPECT_EQ(logits.damage(), "");
    EXPECT_EQ(weights.damage(), "");
    for (const auto* array : {&ids, &order, &place, &starts}) EXPECT_EQ(array->damage(), "");
  }
};

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

// Images of all experts, one behind the other.
struct ExpertsOnDevice {
  ExpertsOnDevice(const std::vector<std::unique_ptr<OwnedWeight>>& from, ArchPath path)
      : each(static_cast<std::int64_t>(cuda::image_bytes(from.front()->weight))),
        arena(room<std::byte>(each * static_cast<std::int64_t>(from.size()))) {
    const std::size_t staging = staging_for(from.front()->weight, 2);
    const PinnedMemory host(staging);
    DeviceArray<std::byte> device(staging);
    for (std::size_t e = 0; e < from.size(); ++e) {
      images.push_back(cuda::pack_weight(from[e]->weight, arena.raw() + static_cast<std::int64_t>(e) * each,
                                         {static_cast<std::byte*>(host.data), device.raw(), staging, nullptr}, path));
      finish_device();
    }
    EXPECT_EQ(arena.damage(), "");
  }
  std::int64_t each;
  DeviceArray<std::byte> arena;
  std::vector<cuda::WeightImage> images;
};

// x of a case in device memory, as LinearArgs reads it.
struct InputOnDevice {
  std::unique_ptr<DeviceMatrix<std::uint16_t>> values;
  std::unique_ptr<DeviceMatrix<std::uint8_t>> codes, bytes;
  std::unique_ptr<DeviceMatrix<float>> scales;
  std::unique_ptr<DeviceArray<std::int32_t>> exponents;

  InputOnDevice(const LinearInput& x, Kind kind, std::int64_t k, std::int64_t most, std::int64_t gap, ArchPath path) {
    const auto matrix = [&]<class T>(const std::vector<T>& from, std::int64_t cols) {
      std::vector<T> all = from;
      all.resize(static_cast<std::size_t>(most * cols));
      return std::make_unique<DeviceMatrix<T>>(all, most, cols, gap);
    };
    if (kind == Kind::none) values = matrix(x.values, k);
    if (kind == Kind::none && path == ArchPath::sm70) {  // of no rows too
      std::vector<std::int32_t> all = x.exponents;
      all.resize(static_cast<std::size_t>(most));
      exponents = std::make_unique<DeviceArray<std::int32_t>>(all);
    }
    if (kind != Kind::none) codes = matrix(x.codes, kind == Kind::nvfp4_static ? k / 2 : k);
    if (kind == Kind::nvfp4_static) bytes = matrix(x.byte_scales, k / 16);
    if (kind == Kind::fp8_token) scales = matrix(x.scales, 1);
    if (kind == Kind::fp8_token_group128) scales = matrix(x.scales, (k + 127) / 128);
  }
  void fill(cuda::LinearArgs& a, Rows rows) {
    a.x = values != nullptr ? values->view(rows) : codes->view(rows);
    if (exponents != nullptr) {
      a.x.dtype = DType::f16;
      a.x.exponents = exponents->data();
    }
    if (bytes != nullptr) a.x_scales = bytes->view(rows);
    if (scales != nullptr) a.x_scales = scales->view(rows);
  }
};

template <class Y>
std::vector<float> run_grouped(const Class& c, cuda::GroupedLinearArgs a, std::int64_t places) {
  const std::int64_t n = a.linear.weight.rows;
  DeviceMatrix<Y> y(c.places(), n, 3);
  a.linear.y = y.view(Rows::routed);
  cuda::grouped_linear(c.to, a);
  finish_device();
  EXPECT_EQ(y.damage(), "");
  std::vector<float> out;
  const std::vector<Y> raw = y.download();
  for (std::size_t i = 0; i < raw.size(); ++i) {
    if (i < static_cast<std::size_t>(places * n)) {
      out.push_back(std::is_same_v<Y, float> ? static_cast<float>(raw[i]) : num::bf16_to_float(static_cast<std::uint16_t>(raw[i])));
    } else {
      unsigned char b[sizeof(Y)];
      std::memcpy(b, &raw[i], sizeof b);
      EXPECT_EQ(b[0], 0xFF) << "a place past the step's count was written";
      if (b[0] != 0xFF) break;
    }
  }
  return out;
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
    a.linear.weight = experts.images.front();
    a.linear.path = path;
    input.fill(a.linear, g.by_place ? Rows::routed : Rows::tokens);
    a.order = routed.order.data();
    a.starts = routed.starts.data();
    a.experts = g.experts;
    a.expert_bytes = experts.each;
    EXPECT_NE(std::string(cuda::grouped_linear_kernel(c.to, a)).find("grouped"), std::string::npos);
    const std::vector<float> y = g.linear.bf16_output ? run_grouped<std::uint16_t>(c, a, g.places())
                                                      : run_grouped<float>(c, a, g.places());
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
