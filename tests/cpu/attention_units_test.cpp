// Attention's prefill rows as matrix units compute them (core/numerics/attention_order.h): bytes against the plain text
// of the contract, and what no cut of a prompt or a batch may change.
#include <limits>

#include "nibble/error.h"
#include "tests/cpu/attention_units_world.h"

namespace nibble::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
#if defined(__SANITIZE_ADDRESS__)
constexpr int kMostRows = 65;  // the plain text takes its time there
#else
constexpr int kMostRows = 200;
#endif

class AttentionUnits : public testing::TestWithParam<std::tuple<int, int, bool>> {  // head_dim, heads of a kv head, of sm70
 protected:
  static AttentionRows rows_like(std::int64_t position, std::int64_t rows, std::uint64_t seed) {
    return like_a_model(shape(), position, rows, seed, std::get<2>(GetParam()));
  }
  static AttentionShape shape() {
    const auto [dim, group, sm70] = GetParam();
    const std::int32_t kv_heads = group == 6 ? 1 : 2;
    return {kv_heads * group, kv_heads, dim};
  }
};
INSTANTIATE_TEST_SUITE_P(All, AttentionUnits, testing::Combine(testing::Values(64, 128, 256), testing::Values(1, 3, 6), testing::Bool()),
                         [](const auto& of) {
                           return "dim_" + std::to_string(std::get<0>(of.param)) + "_group_" +
                                  std::to_string(std::get<1>(of.param)) + (std::get<2>(of.param) ? "_sm70" : "");
                         });

// Later rows lie in the pages already and count for nothing, so one run of the plain text serves every number of rows.
TEST_P(AttentionUnits, IsTheContract) {
  for (const int position : {0, 64, 128 + 17}) {
    const AttentionRows all = rows_like(position, kMostRows, static_cast<std::uint64_t>(position));
    const Row want = reference_units(all);
    for (const int rows : {1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 200}) {
      if (rows > kMostRows) break;
      const Row first(want.begin(), want.begin() + rows * all.cols());
      for (const std::string& isa : isas_here()) {
        expect_bytes(run(isa, all.part(0, rows)), first,
                     isa + ", " + std::to_string(rows) + " rows from " + std::to_string(position));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(AttentionUnits, CutsAtMultiplesOf64) {
  const AttentionRows all = rows_like(64, 266, 3);
  for (const std::string& isa : isas_here()) {
    AttentionPages pages(all.shape, {&all, 1});
    const Row want = pages.run(isa, {&all, 1});
    for (const std::vector<int>& cut : {std::vector<int>{64, 202}, {128, 64, 74}, {192, 64, 10}}) {
      Row got;
      for (const int rows : cut) {
        const AttentionRows part = all.part(static_cast<std::int64_t>(got.size()) / all.cols(), rows);
        append(got, pages.run(isa, {&part, 1}));
      }
      expect_bytes(got, want, isa);
    }
  }
}

TEST_P(AttentionUnits, ARaggedBatchIsItsRanges) {
  const std::vector<AttentionRows> sequences = {rows_like(0, 70, 4), rows_like(145, 1, 5), rows_like(64, 129, 6), rows_like(7, 9, 7)};
  Row want;
  for (const AttentionRows& s : sequences) append(want, run(isas_here().front(), s));
  for (const std::string& isa : isas_here()) {
    AttentionPages pages(shape(), sequences);
    for (const int threads : {1, 2, 5}) {
      expect_bytes(pages.run(isa, sequences, true, Section::prefill, threads), want,
                   isa + ", " + std::to_string(threads) + " threads");
    }
  }
}

// Other head sizes are refused.
TEST(AttentionUnitsOp, OfHeadsThatUnitsTake) {
  const std::string isa = isas_here().front();
  for (const Section section : {Section::decode, Section::verify, Section::prefill}) {
    const AttentionRows rows = like_a_model({6, 2, 64}, 60, 8, 8), other = like_a_model({2, 2, 96}, 60, 8, 8);
    AttentionPages pages(rows.shape, {&rows, 1});
    EXPECT_NE(pages.run(isa, {&rows, 1}, true, section), pages.run(isa, {&rows, 1}, false, section));
    EXPECT_THROW(AttentionPages(other.shape, {&other, 1}).run(isa, {&other, 1}, true, section), Error);
    AttentionRows of_sm70 = rows;
    of_sm70.sm70 = true;
    if (section == Section::prefill) {
      EXPECT_NE(pages.run(isa, {&of_sm70, 1}, true, section), pages.run(isa, {&rows, 1}, true, section));
    } else {
      EXPECT_THROW(pages.run(isa, {&of_sm70, 1}, true, section), Error);
    }
  }
}

constexpr AttentionShape kShape{2, 1, 64};
void with(const char* name, auto change) {
  for (const bool sm70 : {false, true}) {
    AttentionRows r = like_a_model(kShape, 33, 70, 9, sm70);  // 103 keys: in the second tile 25 of nothing
    change(r);
    expect_contract(r, std::string(name) + (sm70 ? ", sm70" : ""));
  }
}
float& key(AttentionRows& r, std::int64_t j, std::int64_t d) { return r.k[at(j * 64 + d)]; }
float& value(AttentionRows& r, std::int64_t j, std::int64_t d) { return r.v[at(j * 64 + d)]; }
// All queries look at element 0, so that a key's score is its element 0 where the others are 0.
void look_at_one_element(AttentionRows& r) {
  for (std::size_t i = 0; i < r.q.size(); ++i) r.q[i] = i % 64 == 0 ? 1.0f : 0.0f;
}

TEST(AttentionUnitsContract, ValuesThatAreNoNumbers) {
  for (const int j : {0, 40, 63, 64, 70, 102}) {
    for (const float x : {kNan, kInfinity, -kInfinity}) {
      const std::string where = std::to_string(x) + " at " + std::to_string(j);
      with(("a key of " + where).c_str(), [&](AttentionRows& r) { key(r, j, 5) = x; });
      with(("a value of " + where).c_str(), [&](AttentionRows& r) { value(r, j, 17) = x; });
      with(("a query of " + where).c_str(), [&](AttentionRows& r) { r.q[at((j % 70) * 128 + 64 + 9)] = x; });
    }
  }
  with("infinities of both signs in a column", [&](AttentionRows& r) {
    value(r, 3, 0) = kInfinity, value(r, 50, 0) = -kInfinity, value(r, 80, 1) = -kInfinity;
  });
  with("a tile of keys that are no numbers", [](AttentionRows& r) { std::fill_n(r.k.begin(), 64 * 64, kNan); });
  with("keys that are no numbers", [](AttentionRows& r) { std::fill(r.k.begin(), r.k.end(), kNan); });
  with("keys that are no numbers behind the first", [](AttentionRows& r) {
    std::fill(r.k.begin() + 64, r.k.end(), kNan);
  });
}

// Earlier rows of its tile; rows of tiles before never.
TEST(AttentionUnitsContract, AValueThatIsNoNumberMarksItsTile) {
  for (const bool sm70 : {false, true}) {
    AttentionRows r = like_a_model({1, 1, 64}, 0, 128, 10, sm70);
    value(r, 100, 7) = kNan;
    for (const std::string& isa : isas_here()) {
      const Row y = run(isa, r);
      for (std::int64_t i = 0; i < r.rows; ++i) {
        for (std::int64_t d = 0; d < 64; ++d) {
          EXPECT_EQ(std::isnan(y[at(i * 64 + d)]), d == 7 && i >= 64) << i << ", " << d;
        }
      }
    }
  }
}

// A page may hold anything where the range has no rows yet: zeros, numbers or none give the same rows.
TEST(AttentionUnitsContract, WhatLiesBehindTheRangeCountsForNothing) {
  for (const bool sm70 : {false, true}) {
    AttentionRows r = like_a_model(kShape, 33, 95, 11, sm70);
    const AttentionRows first = r.part(0, 20);
    const Row want = reference_units(first);
    for (const float x : {0.0f, kNan, kInfinity, 3e38f}) {
      AttentionRows part = first;
      std::fill(part.k.begin() + 53 * 64, part.k.end(), x);
      std::fill(part.v.begin() + 53 * 64, part.v.end(), x);
      for (const std::string& isa : isas_here()) expect_bytes(run(isa, part), want, isa + ", " + std::to_string(x));
    }
  }
}

TEST(AttentionUnitsContract, Scores) {
  with("zeros of both signs", [](AttentionRows& r) {
    for (Row* all : {&r.q, &r.k, &r.v}) {
      for (std::size_t i = 0; i < all->size(); ++i) (*all)[i] = i % 3 == 0 ? 0.0f : -0.0f;
    }
  });
  with("equal scores", [](AttentionRows& r) { std::fill(r.q.begin(), r.q.end(), 0.0f); });
  with("equal scores that are not 0", [](AttentionRows& r) {
    for (std::size_t i = 64; i < r.k.size(); ++i) r.k[i] = r.k[i - 64];
  });
  const auto scores = [](const char* name, auto of) {
    with(name, [&](AttentionRows& r) {
      look_at_one_element(r);
      for (std::int64_t j = 0; j < 103; ++j) key(r, j, 0) = bf16(of(j));
    });
  };
  scores("scores of -infinity", [](std::int64_t) { return -kInfinity; });
  scores("first tile of -infinity", [](std::int64_t j) { return j < 64 ? -kInfinity : 1.0f; });
  scores("second tile of -infinity", [](std::int64_t j) { return j < 64 ? 1.0f : -kInfinity; });
  scores("one score in three", [](std::int64_t j) { return j % 3 == 1 ? 0.5f : -kInfinity; });
  scores("scores of infinity", [](std::int64_t) { return kInfinity; });
  scores("one score of infinity", [](std::int64_t j) { return j == 40 ? kInfinity : 1.0f; });
  scores("infinity at last", [](std::int64_t j) { return j == 100 ? kInfinity : -kInfinity; });
  scores("infinity and no number", [](std::int64_t j) { return j % 2 == 0 ? kInfinity : kNan; });
  scores("-infinity and no number", [](std::int64_t j) { return j % 2 == 0 ? -kInfinity : kNan; });
  scores("rising by 3", [](std::int64_t j) { return 24.0f * static_cast<float>(j); });
  scores("falling by 3", [](std::int64_t j) { return -24.0f * static_cast<float>(j); });
  // weights from 1 down to the least that exp gives, where chains leave their ordinary way
  scores("falling by 1", [](std::int64_t j) { return -8.0f * static_cast<float>(j); });
  scores("87 below the first", [](std::int64_t j) { return j == 0 ? 0.0f : -696.0f - 0.1f * static_cast<float>(j % 8); });
  scores("85 above the first tile", [](std::int64_t j) { return j < 64 ? 0.0f : 680.0f; });
  scores("3e38 and -3e38", [](std::int64_t j) { return j % 2 == 0 ? 3e38f : -3e38f; });
  with("scores beyond float32", [](AttentionRows& r) {
    for (float& x : r.q) x = bf16(x * 1e30f);
    for (float& x : r.k) x = bf16(x * 1e15f);
  });
  with("very large scores", [](AttentionRows& r) {
    for (float& x : r.q) x = bf16(x * 1e18f);
    for (float& x : r.k) x = bf16(x * 1e17f);
  });
  with("next to no scores", [](AttentionRows& r) {
    for (float& x : r.q) x = bf16(x * 1e-30f);
    for (float& x : r.k) x = bf16(x * 1e-12f);
  });
}

TEST(AttentionUnitsContract, Values) {
  with("values next to nothing", [](AttentionRows& r) {
    for (std::size_t i = 0; i < r.v.size(); ++i) r.v[i] = bf16(i % 5 == 4 ? r.v[i] * 1e-30f : r.v[i] * 1e-39f);
  });
  with("values near the top of float32", [](AttentionRows& r) {
    for (float& x : r.v) x = bf16(x * 8e37f);
  });
  with("values with outliers", [](AttentionRows& r) {
    for (std::size_t i = 0; i < r.v.size(); i += 37) r.v[i] = bf16(r.v[i] * 1e20f);
  });
  with("values that cancel", [](AttentionRows& r) {
    for (std::int64_t j = 1; j < 103; j += 2) {
      for (std::int64_t d = 0; d < 64; ++d) value(r, j, d) = -value(r, j - 1, d), key(r, j, d) = key(r, j - 1, d);
    }
  });
}

// Queries, keys and values of all of float32's range, tile by tile and among others.
TEST(AttentionUnitsContract, Powers) {
  const auto scaled = [](Row& x, std::int64_t step, int least, int most) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = std::ldexp(x[i], least + static_cast<int>(static_cast<std::int64_t>(i) / step % (most - least + 1)));
    }
  };
  with("tiles of values from 2^-120 to 2^120", [&](AttentionRows& r) { scaled(r.v, 64 * 64, -120, 120); });
  with("keys of values from 2^10 to 2^100", [&](AttentionRows& r) { scaled(r.v, 64, 10, 100); });
  with("columns of values from 2^-40 to 2^23", [&](AttentionRows& r) { scaled(r.v, 1, -40, 23); });
  with("keys from 2^-60 to 2^42", [&](AttentionRows& r) { scaled(r.k, 64, -60, 42); });
  with("columns of keys from 2^-20 to 2^43", [&](AttentionRows& r) { scaled(r.k, 1, -20, 43); });
  with("queries from 2^-60 to 2^79", [&](AttentionRows& r) { scaled(r.q, 128, -60, 79); });
  with("large queries and keys, small scale", [&](AttentionRows& r) {
    scaled(r.q, 64, 14, 20), scaled(r.k, 64, 13, 17);
    r.scale = 0x1p-36f;
  });
  with("largest of f16, and just beyond", [](AttentionRows& r) {
    r.v[3] = 32767.0f, r.v[at(64 * 64 + 5)] = 32768.0f, r.v[at(64 * 64 + 9)] = 65520.0f, r.k[9] = -65519.0f;
  });
}

TEST(AttentionUnitsContract, Scales) {
  for (const float scale : {1.0f, 0.088388346f, -0.125f, 0.0f, 40.0f, 1e-6f, 1e30f, 1e-40f}) {
    with(("scale " + std::to_string(scale)).c_str(), [&](AttentionRows& r) { r.scale = scale; });
  }
}

}  // namespace
}  // namespace nibble::test
