// GroupedLinear's tuned kernel on sm_90: each tile, on a card as it is and on one taken for small, has all the bits of the
// plain kernel (grouped_test.cu holds that against Linear), and some of them are the mirror's.
#include <algorithm>
#include <set>

#include "backends/cuda/ops/linear_group_tiles.cuh"
#include "tests/cuda/grouped_run.h"

namespace nibble::test {
namespace {

using cuda::ArchPath;

std::vector<Combination> unquantised() {
  std::vector<Combination> all;
  for (const Combination& c : combinations()) {
    if (c.kind == Kind::none && c.format != WeightFormat::f16 && c.format != WeightFormat::f32) all.push_back(c);
  }
  return all;
}

// On the host: whatever the starts, units hold each row tile of each sorted place once, and each has rows.
TEST(GroupUnits, HoldEveryPlaceOnceForEachRowTile) {
  const auto ballot = [](const auto& of) {
    std::uint32_t bits = 0;
    for (int i = 0; i < 32; ++i) bits |= of(i) ? 1u << i : 0u;
    return bits;
  };
  Hash random{5};
  for (int round = 0; round < 2000; ++round) {
    const int experts = 1 + static_cast<int>(random() % (round % 3 == 0 ? 1024 : 40));
    const std::uint32_t most = round % 5 == 0 ? 2 : round % 5 == 1 ? 300 : 20, rare = random() % 4 + 1;
    std::vector<std::int32_t> starts = {0};
    for (int e = 0; e < experts; ++e) {
      starts.push_back(starts.back() + static_cast<std::int32_t>(random() % rare == 0 ? random() % (most + 1) : 0));
    }
    const int tokens = cuda::kGroupedTiles[round % cuda::kGroupedTileCount].tokens, row_tiles = 1 + round % 3;
    std::vector<std::int32_t> first;
    int tiles = 0;
    for (std::size_t e = 0; e + 1 < starts.size(); ++e) {
      first.push_back(tiles);
      tiles += cuda::group_tiles(starts[e + 1] - starts[e], tokens);
    }
    std::vector<int> seen(static_cast<std::size_t>(starts.back() * row_tiles));
    for (int unit = 0; unit < tiles * row_tiles; ++unit) {
      const cuda::GroupWork w =
          cuda::group_work(starts.data(), first.data(), experts, row_tiles, unit, tokens, ballot);
      const auto e = static_cast<std::size_t>(w.expert);
      ASSERT_TRUE(w.first >= starts[e] && w.first < w.end && w.end <= starts[e + 1] && w.end - w.first <= tokens);
      for (int i = w.first; i < w.end; ++i) ++seen[static_cast<std::size_t>(i * row_tiles + w.row)];
    }
    for (const int count : seen) ASSERT_EQ(count, 1) << experts << " experts, tiles of " << tokens;
  }
}

// The table holds what it is for.
TEST(GroupedTileCases, HoldEverySort) {
  std::size_t runs = 0;
  for (const Combination& c : unquantised()) {
    const auto cases = grouped_tile_cases_of(c);
    runs += cases.size() * (cuda::kGroupedTileCount - 1);  // one is for weights of one segment alone
    int several = 0, one = 0, tails = 0, many = 0;
    std::set<std::int64_t> shapes;
    for (const GroupedCase& g : cases) {
      const bool blocks = c.layout == ScaleLayout::block128;
      ++(num::linear_segments(g.linear.n, g.linear.k, blocks).count > 1 ? several : one);
      tails += g.linear.k % 64 != 0;
      many += g.places() / g.experts > 128;
      shapes.insert(g.linear.n);
      EXPECT_EQ((g.linear.k + g.linear.gap) % 8, 0);
    }
    for (const int seen : {several, one, tails, many}) EXPECT_GE(seen, 3);
    for (const std::int64_t n : {464, 130, 1856, 200}) EXPECT_TRUE(shapes.contains(n)) << n;
  }
  EXPECT_GE(runs, 880u);
}

// Of some places, some columns.
void expect_mirror(const GroupedCase& g, const std::vector<std::unique_ptr<OwnedWeight>>& weights, const LinearInput& x,
                   const std::vector<std::int32_t>& order, const std::vector<std::int32_t>& ids,
                   const std::vector<float>& y) {
  std::vector<std::int64_t> columns = {0, g.linear.n - 1};
  Hash random{static_cast<std::uint64_t>(g.linear.n + g.t)};
  while (columns.size() < 20) columns.push_back(random() % g.linear.n);
  for (const std::int64_t place : {std::int64_t{0}, g.places() / 3, g.places() - 1}) {
    const std::int32_t j = order[static_cast<std::size_t>(place)], e = ids[static_cast<std::size_t>(j)];
    std::vector<float> want;
    mirror_linear(weights[static_cast<std::size_t>(e)]->weight, format_of(Kind::none),
                  row_of(x, g.by_place ? place : j / g.per_token), columns, want, ArchPath::sm90);
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const float v = g.linear.bf16_output ? num::bf16_to_float(num::float_to_bf16(want[i])) : want[i];
      const float found = y[static_cast<std::size_t>(place * g.linear.n + columns[i])];
      ASSERT_TRUE(same_bits(v, found)) << "the mirror, y[" << place << ", " << columns[i] << "]: expected " << v
                                       << ", found " << found;
    }
  }
}

struct Count {
  int runs = 0, chosen = 0;
};

void check(const Combination& of, const GroupedCase& g, std::size_t index, Count& count) {
  SCOPED_TRACE(grouped_text(of, g, index));
  constexpr std::int64_t kMore[] = {0, kMoreRows, 200};
  const Class c(g.t, g.per_token, kMore[index % 3]);
  if (c.to.max_rows == 0) return;
  const auto owned = grouped_weights(of, g, 500 + index);
  const ExpertsOnDevice experts(owned, ArchPath::sm90);
  const LinearInput x = random_input(of, g.linear, kInputSeed + 500 + index, ArchPath::sm90);
  const RoutedOnDevice routed(c, {g.experts, g.per_token, g.t, true}, grouped_logits(g, 177 + index));
  InputOnDevice input(x, of.kind, g.linear.k, g.by_place ? c.places() : c.to.max_rows, g.linear.gap);
  cuda::GroupedLinearArgs a;
  a.linear.format = format_of(of.kind);
  a.linear.weight = experts.first();
  a.linear.path = ArchPath::sm90;
  input.fill(a.linear, g.by_place ? Rows::routed : Rows::tokens);
  a.order = routed.order.data();
  a.starts = routed.starts.data();
  a.experts = g.experts;
  a.expert_bytes = experts.each;
  const auto run = [&](int tile, int multiprocessors) {
    cuda::Launch as = c.to;
    as.multiprocessors = multiprocessors;
    a.linear.tile = tile;
    const bool tuned = std::string(cuda::grouped_linear_kernel(as, a)) == "wgmma.m64k16, grouped";
    if (tile != -1) {
      EXPECT_EQ(tuned, tile >= 0) << cuda::grouped_linear_kernel(as, a);
    }
    count.chosen += tile == -1 && tuned;
    return run_grouped(g.linear.bf16_output, as, a, g.places(), 3 + static_cast<std::int64_t>(index / 2 % 2));
  };
  const std::vector<float> y = run(cuda::kPlainTile, multiprocessors());
  expect_same(y, run(-1, multiprocessors()), "as the class asks");
  if (g.places() > 0) expect_mirror(g, owned, x, routed.order.download(), routed.ids.download(), y);
  if (testing::Test::HasFatalFailure()) return;
  const std::vector<cuda::LinearTile> tiles = cuda::grouped_linear_tiles(c.to, a);
  EXPECT_EQ(tiles.empty(), !a.linear.weight.plain || !cuda::has_wgmma());
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    if (!tiles[i].refusal.empty()) continue;
    for (const int taken_for : {multiprocessors(), 2}) {
      if (taken_for == 2 && (index + i) % 2 == 0) continue;
      ++count.runs;
      expect_same(y, run(static_cast<int>(i), taken_for), tiles[i].name.c_str());
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Of 512 experts, 10 for each token; nothing is launched.
struct QwenExperts {
  cuda::Launch to;
  cuda::GroupedLinearArgs a;

  QwenExperts(std::int64_t n, std::int64_t k, std::int64_t t) {
    to.max_rows = t;
    to.multiprocessors = 132;
    to.experts_per_token = 10;
    cuda::WeightImage& w = a.linear.weight;
    w.format = WeightFormat::nvfp4;
    w.rows = w.padded_rows = n;
    w.cols = w.padded_cols = k;
    w.scale_code = cuda::ScaleCode::e5m3;
    w.plain = true;
    w.segments = num::linear_segments(n, k, false);
    a.linear.path = ArchPath::sm90;
    a.linear.x.dtype = DType::bf16;
    a.linear.x.stride = k;
    a.linear.y.rows = Rows::routed;
    a.experts = 512;
  }
  std::string verdict() const {
    for (const auto& [kernel, why] : cuda::grouped_linear_choices(to, a)) {
      if (kernel == "wgmma.m64k16, grouped") return why;
    }
    return "not in the table";
  }
};

TEST(CudaGroupedChoice, FollowsTheClass) {
  NIBBLE_NEEDS_DEVICE();
  if (!cuda::has_wgmma()) GTEST_SKIP() << "the card runs no code for sm_90a";
  const auto expect = [](std::int64_t n, std::int64_t k, std::int64_t t, const char* part) {
    const std::string found = QwenExperts(n, k, t).verdict();
    EXPECT_NE(found.find(part), std::string::npos) << n << "x" << k << ", T " << t << ": " << found;
  };
  expect(1024, 2048, 1, "there are fewer than two units for each multiprocessor");
  expect(1024, 2048, 8, "served, tile 128x8, 640 units at most, 2 segments");
  expect(1024, 2048, 64, "served, tile 128x8,");
  expect(1024, 2048, 512, "served, tile 128x16,");
  expect(1024, 2048, 1024, "served, tile 128x32,");
  expect(1024, 2048, 2048, "served, tile 128x64, totals in registers,");
  expect(2048, 512, 2048, "served, tile 128x64, 13312 units at most, 1 segments");
  expect(2048, 512, 4096, "served, tile 128x128, totals in registers,");
}

TEST(CudaGroupedChoice, DeclinesWithAReason) {
  NIBBLE_NEEDS_DEVICE();
  if (!cuda::has_wgmma()) GTEST_SKIP() << "the card runs no code for sm_90a";
  const auto expect = [](const char* why, const auto& change) {
    QwenExperts e(1024, 2048, 64);
    change(e);
    EXPECT_EQ(e.verdict(), why);
  };
  expect("the path is not sm90", [](QwenExperts& e) { e.a.linear.path = ArchPath::sm120; });
  expect("x is quantised", [](QwenExperts& e) { e.a.linear.format.kind = Kind::fp8_token; });
  expect("rows of x are not aligned to 16 bytes", [](QwenExperts& e) { e.a.linear.x.stride = 2052; });
  expect("an FP8 code is NaN", [](QwenExperts& e) { e.a.linear.weight.plain = false; });
  expect("block scales were not packed for sm90",
         [](QwenExperts& e) { e.a.linear.weight.scale_code = cuda::ScaleCode::e4m3; });
  expect("the weight was not packed for bf16 operands", [](QwenExperts& e) { e.a.linear.weight.values = DType::f16; });
  expect("there are no experts, or more than 1024", [](QwenExperts& e) { e.a.experts = 1025; });
  expect("a plain kernel was asked for", [](QwenExperts& e) { e.a.linear.tile = cuda::kPlainTile; });
}

constexpr std::size_t kSlices = 4;
struct Slice {
  Combination of;
  std::size_t first;
};
std::vector<Slice> slices() {
  std::vector<Slice> all;
  for (const Combination& c : unquantised()) {
    for (std::size_t first = 0; first < kSlices; ++first) all.push_back({c, first});
  }
  return all;
}

class CudaGroupedTiles : public testing::TestWithParam<Slice> {};

TEST_P(CudaGroupedTiles, HaveTheBitsOfThePlainKernel) {
  NIBBLE_NEEDS_DEVICE();
  const std::vector<GroupedCase> cases = grouped_tile_cases_of(GetParam().of);
  Count count;
  for (std::size_t i = GetParam().first; i < cases.size(); i += kSlices) {
    check(GetParam().of, cases[i], i, count);
    if (HasFatalFailure()) return;
  }
  RecordProperty("runs", count.runs);
  if (cuda::has_wgmma()) {
    EXPECT_GE(count.runs, 40);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaGroupedTiles, testing::ValuesIn(slices()), [](const auto& slice) {
  return combination_name(slice.param.of) + "_" + std::to_string(slice.param.first);
});

}  // namespace
}  // namespace nibble::test
