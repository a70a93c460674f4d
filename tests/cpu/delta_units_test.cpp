// The delta rule's prefill rows as matrix units compute them (core/numerics/delta_order.h): bytes against the plain
// text of the contract, and what no cut of a prompt or a batch may change.
#include <limits>

#include "nibble/error.h"
#include "tests/cases/sequence_on_cpu.h"
#include "tests/cpu/delta_units_world.h"

namespace nibble::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Sizes = std::tuple<PrefillUnits, int, int>;  // profile, key_dim, value_dim
constexpr PrefillUnits kBoth[] = {PrefillUnits::sm90, PrefillUnits::sm70};
class DeltaUnits : public testing::TestWithParam<Sizes> {};
INSTANTIATE_TEST_SUITE_P(All, DeltaUnits,
                         testing::Combine(testing::ValuesIn(kBoth), testing::Values(32, 128),
                                          testing::Values(32, 40, 128)),
                         [](const auto& of) {
                           return std::string(name_of(std::get<0>(of.param))) + "_key_" +
                                  std::to_string(std::get<1>(of.param)) + "_value_" +
                                  std::to_string(std::get<2>(of.param));
                         });

TEST_P(DeltaUnits, IsTheContract) {
  const auto [units, key_dim, value_dim] = GetParam();
  for (const int rows : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 4097}) {
    if (rows > 200 && (key_dim > 32 || value_dim > 32)) continue;  // the text takes long
    for (const bool inside : {false, true}) {  // of a chunk
      if (inside && rows > 65 && value_dim != 40) continue;
      DeltaHead h = like_a_model(key_dim, value_dim, rows, 0.1f, static_cast<std::uint64_t>(rows), units);
      h.position = inside ? 64 + rows % 61 + 1 : 0;
      h.s = Normal(5).row(key_dim * value_dim, 0.3f);
      for (float& x : h.s) x *= 1.001f;  // more than bf16 holds
      expect_contract(h, some_records(h, rows % 4), std::to_string(rows) + " rows from " + std::to_string(h.position));
      if (HasFatalFailure()) return;
    }
  }
}

// Columns know nothing of each other: any cut by panels gives the same bits.
TEST_P(DeltaUnits, PanelsAlone) {
  const auto [units, key_dim, value_dim] = GetParam();
  const DeltaHead h = like_a_model(key_dim, value_dim, 90, 0.1f, 9, units);
  const Records records = some_records(h, 2);
  for (const std::string& isa : isas_here()) {
    DeltaHead whole = h, parts = h;
    const Row want = run(isa, whole, records);
    Row got(want.size());
    for (std::int64_t p = 0; p < (value_dim + 15) / 16; ++p) {
      run_panels(cpu::sequence_kernels(isa), parts, records, p, p + 1, got);
    }
    expect_bytes(got, want, isa + ", y");
    expect_bytes(parts.s, whole.s, isa + ", S");
  }
}

// Infinities, NaN, zeros of both signs, the ends of float32.
class DeltaUnitsContract : public testing::TestWithParam<PrefillUnits> {};
INSTANTIATE_TEST_SUITE_P(All, DeltaUnitsContract, testing::ValuesIn(kBoth),
                         [](const auto& of) { return name_of(of.param); });

TEST_P(DeltaUnitsContract, SpecialValues) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto with = [](const char* name, auto change) {
    DeltaHead h = like_a_model(32, 40, 100, 0.1f, 24, GetParam());
    h.s = Normal(5).row(32 * 40, 0.3f);
    change(h);
    expect_contract(h, {}, name);
  };
  with("a key of NaN", [&](DeltaHead& h) { h.k[at(70 * 32 + 3)] = nan; });
  with("a key of infinity", [&](DeltaHead& h) { h.k[at(20 * 32 + 3)] = kInfinity; });
  with("a query of NaN", [&](DeltaHead& h) { h.q[at(70 * 32)] = nan; });
  with("a query of infinity", [&](DeltaHead& h) { h.q[at(7 * 32)] = -kInfinity; });
  with("a value of NaN", [&](DeltaHead& h) { h.v[at(90 * 40 + 39)] = nan; });
  with("a value of infinity", [&](DeltaHead& h) { h.v[at(9 * 40 + 17)] = kInfinity; });
  with("beta of NaN", [&](DeltaHead& h) { h.beta[3] = nan; });
  with("a gate of NaN", [&](DeltaHead& h) { h.g[70] = nan; });
  with("a gate of -infinity", [&](DeltaHead& h) { h.g[30] = -kInfinity; });
  with("S of infinity and NaN", [&](DeltaHead& h) { h.s[5] = kInfinity, h.s[97] = nan; });
  with("S near the ends of float32", [&](DeltaHead& h) {
    for (std::size_t i = 0; i < h.s.size(); ++i) h.s[i] *= i % 3 == 0 ? 1e-38f : i % 3 == 1 ? 1e-20f : 1e37f;
  });
  with("zeros of both signs", [&](DeltaHead& h) {
    for (Row* all : {&h.k, &h.q, &h.v, &h.s}) {
      for (std::size_t i = 0; i < all->size(); ++i) (*all)[i] = i % 2 == 0 ? 0.0f : -0.0f;
    }
  });
  with("tiny keys and values", [&](DeltaHead& h) {
    for (Row* all : {&h.k, &h.q, &h.v, &h.s}) {
      for (float& x : *all) x = bf16(x * 1e-25f);
    }
  });
  // Nothing else is left beside exp(-83), a normal number.
  with("decays that count for little", [&](DeltaHead& h) {
    std::fill(h.g.begin(), h.g.end(), 0.0f);
    for (std::size_t i = 32; i < h.beta.size(); ++i) h.beta[i] = 0.0f;
    h.g[32] = -83.0f;
  });
  // R of less than a float's upper half tells, alone and beside others.
  with("values next to nothing", [&](DeltaHead& h) {
    for (std::size_t i = 0; i < h.v.size(); ++i) h.v[i] = bf16(i % 5 == 4 ? 1e-30f : h.v[i] * 1e-39f);
    for (float& x : h.s) x = 0.0f;
  });
  with("keys and values next to nothing", [&](DeltaHead& h) {
    for (Row* all : {&h.k, &h.v, &h.s}) {
      for (float& x : *all) x = bf16(x * 4e-20f);
    }
    for (float& x : h.v) x = bf16(x * 4e-20f);
  });
  with("long keys", [&](DeltaHead& h) {
    for (float& x : h.k) x = bf16(x * 30.0f);
  });
  with("keys beyond f16", [&](DeltaHead& h) {
    for (std::size_t i = 0; i < h.k.size(); i += 7) h.k[i] = bf16(h.k[i] * 1e6f);
  });
  with("gates and beta above what gates give", [&](DeltaHead& h) {
    for (float& x : h.g) x = -x;
    for (float& x : h.beta) x *= 5.0f;
  });
  with("gates that grow beyond float32", [&](DeltaHead& h) { std::fill(h.g.begin(), h.g.end(), 3.0f); });
  with("values near the top of float32", [&](DeltaHead& h) {
    for (float& x : h.v) x = bf16(x * 8e37f);
  });
  // Each column has an exponent of its own, down to the least one.
  with("columns from 2^-140 to 2^94", [&](DeltaHead& h) {
    const auto scale = [](Row& x) {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::ldexp(x[i], static_cast<int>(i % 40) * 6 - 140);
    };
    scale(h.v);
    scale(h.s);
  });
  with("one large element in each column", [&](DeltaHead& h) {
    for (std::size_t i = 0; i < 40; ++i) h.s[(i * 7 % 32) * 40 + i] *= 1e5f;
    for (std::size_t i = 0; i < 40; ++i) h.v[(i * 11 % 100) * 40 + i] = bf16(h.v[(i * 11 % 100) * 40 + i] * 1e6f);
  });
}

// Through the op, with convolution, gates, records and slots.
template <class E>
class DeltaUnitsOp : public testing::Test {};
struct ProfileOf {
  template <class E>
  static std::string GetName(int) { return std::is_same_v<E, F16> ? "sm70" : "sm90"; }
};
using Operands = testing::Types<std::uint16_t, F16>;
TYPED_TEST_SUITE(DeltaUnitsOp, Operands, ProfileOf);
constexpr DeltaShape kShape{2, 4, 32, 40, 4};

template <class E>
Row last_rows(DeltaOnCpu<E>& world, const std::vector<Part>& parts) {
  typename DeltaOnCpu<E>::Step s = world.begin(parts);
  world.conv_and_gates(s);
  world.rule(s);
  world.end(s);
  return s.o;
}

TYPED_TEST(DeltaUnitsOp, CutsAtMultiplesOf64) {
  using Op = DeltaOnCpu<TypeParam>;
  Op whole(kShape, 1, 4, true);
  const Row want = last_rows(whole, {{Section::prefill, 0, 330}});
  for (const std::vector<int>& cut : {std::vector<int>{64, 266}, {128, 64, 138}, {192, 128, 10}}) {
    Op world(kShape, 1, 4, true);
    Row got;
    for (const int rows : cut) append(got, last_rows(world, {{Section::prefill, 0, rows}}));
    expect_bytes(got, want, "y");
    expect_bytes(world.saved(0, 0), whole.saved(0, 0), "state");
  }
}

TYPED_TEST(DeltaUnitsOp, ARaggedBatchIsItsRanges) {
  using Op = DeltaOnCpu<TypeParam>;
  const auto play = [](Op& world, const std::vector<std::int32_t>& slots) {
    std::vector<Row> rows;  // of each slot
    const auto step = [&](Section section, std::int32_t base, std::int32_t keep) {
      std::vector<Part> parts;
      for (const std::int32_t slot : slots) parts.push_back({section, slot, base + 37 * slot, keep});
      const Row o = last_rows(world, parts);
      std::int64_t first = 0;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        rows.resize(parts.size());
        const std::int64_t count = parts[i].rows * kShape.value_channels();
        append(rows[i], Row(o.begin() + first, o.begin() + first + count));
        first += count;
      }
    };
    step(Section::prefill, 5, 0);
    std::vector<Part> verify;
    for (const std::int32_t slot : slots) verify.push_back({Section::verify, slot, 3, 0});
    last_rows(world, verify);
    step(Section::prefill, 70, 2);  // folds two records of three
    return rows;
  };
  Op together(kShape, 3, 4, true);
  const std::vector<Row> all = play(together, {0, 1, 2});
  for (const std::int32_t slot : {0, 1, 2}) {
    Op alone(kShape, 3, 4, true);
    expect_bytes(play(alone, {slot}).at(0), all[at(slot)], "slot " + std::to_string(slot));
    expect_bytes(alone.saved(slot, 0), together.saved(slot, 0), "state of slot " + std::to_string(slot));
  }
}

// Decode and verify rows do not know of it; prefill rows of other head sizes are refused.
TYPED_TEST(DeltaUnitsOp, OnlyPrefillRows) {
  using Op = DeltaOnCpu<TypeParam>;
  Op on(kShape, 1, 4, true), off(kShape, 1, 4);
  for (const Section section : {Section::decode, Section::verify}) {
    const std::int32_t keep = section == Section::verify ? 1 : 0;
    const std::vector<Part> parts = {{section, 0, 1, keep}};
    expect_bytes(last_rows(on, parts), last_rows(off, parts), "y");
  }
  const std::vector<Part> prefill = {{Section::prefill, 0, 9, 1}};
  EXPECT_NE(last_rows(on, prefill), last_rows(off, prefill));
  Op other({1, 1, 64, 16, 4}, 1, 4, true);
  EXPECT_THROW(last_rows(other, prefill), Error);
}

}  // namespace
}  // namespace nibble::test
