// Attention's decode and verify rows as matrix units compute them (core/numerics/attention_order.h): bytes against the
// plain text of the contract, and that a row feels nothing but its own sequence up to itself.
#include <limits>

#include "tests/cpu/attention_units_world.h"

namespace nibble::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class AttentionSplits : public testing::TestWithParam<std::tuple<int, int>> {  // head_dim, heads of a kv head
 protected:
  static AttentionShape shape() {
    const auto [dim, group] = GetParam();
    const std::int32_t kv_heads = group >= 6 ? 1 : 2;
    return {kv_heads * group, kv_heads, dim};
  }
};
INSTANTIATE_TEST_SUITE_P(All, AttentionSplits, testing::Combine(testing::Values(64, 128, 256), testing::Values(1, 6, 17)),
                         [](const auto& of) {
                           return "dim_" + std::to_string(std::get<0>(of.param)) + "_group_" +
                                  std::to_string(std::get<1>(of.param));
                         });

// Around the ends of tiles and splits.
TEST_P(AttentionSplits, IsTheContract) {
  for (const int position : {0, 1, 62, 63, 64, 200, 511, 512, 1023, 1100}) {
    expect_contract(like_a_model(shape(), position, 1, 31), "position " + std::to_string(position), Section::decode);
    if (HasFatalFailure()) return;
  }
}

TEST_P(AttentionSplits, AVerifyRowIsADecodeRow) {
  for (const int position : {0, 58, 507, 1020}) {
    const AttentionRows all = like_a_model(shape(), position, 9, 32);
    for (const std::string& isa : isas_here()) {
      AttentionPages pages(all.shape, {&all, 1});
      Row alone;
      for (int i = 0; i < 9; ++i) {
        const AttentionRows one = all.part(i, 1);
        append(alone, pages.run(isa, {&one, 1}, true, Section::decode));
      }
      for (const int rows : {1, 2, 5, 9}) {
        const AttentionRows part = all.part(0, rows);
        expect_bytes(pages.run(isa, {&part, 1}, true, Section::verify),
                     Row(alone.begin(), alone.begin() + rows * all.cols()),
                     isa + ", " + std::to_string(rows) + " rows from " + std::to_string(position));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(AttentionSplits, ARaggedBatchIsItsRanges) {
  const std::vector<AttentionRows> sequences = {like_a_model(shape(), 0, 3, 33), like_a_model(shape(), 1021, 5, 34),
                                                like_a_model(shape(), 64, 1, 35), like_a_model(shape(), 510, 4, 36)};
  Row want;
  for (const AttentionRows& s : sequences) append(want, run(isas_here().front(), s, Section::verify));
  for (const std::string& isa : isas_here()) {
    AttentionPages pages(shape(), sequences);
    for (const int threads : {1, 2, 5}) {
      expect_bytes(pages.run(isa, sequences, true, Section::verify, threads), want,
                   isa + ", " + std::to_string(threads) + " threads");
    }
  }
}

// Keys and values behind a row: zeros, numbers or none, in its tile or not.
TEST_P(AttentionSplits, WhatLiesBehindARowCountsForNothing) {
  for (const int position : {33, 61, 509}) {
    const AttentionRows all = like_a_model(shape(), position, 5, 37);
    const Row want = reference_units(all.part(0, 2), Section::verify);
    for (const float x : {0.0f, kNan, kInfinity, -kInfinity, 3e38f}) {
      AttentionRows hurt = all;
      std::fill(hurt.k.begin() + (position + 2) * all.kv_cols(), hurt.k.end(), x);
      std::fill(hurt.v.begin() + (position + 2) * all.kv_cols(), hurt.v.end(), x);
      for (const std::string& isa : isas_here()) {
        Row got = run(isa, hurt, Section::verify);
        got.resize(want.size());
        expect_bytes(got, want, isa + ", " + std::to_string(x) + " behind " + std::to_string(position + 1));
      }
    }
  }
}

TEST(AttentionSplitsContract, ValuesThatAreNoNumbers) {
  for (const std::int64_t j : {0, 40, 511, 512, 520, 533}) {
    for (const float x : {kNan, kInfinity, -kInfinity}) {
      for (const bool key : {false, true}) {
        AttentionRows r = like_a_model({2, 1, 64}, 530, 5, 38);
        (key ? r.k : r.v)[at(j * 64 + 5)] = x;
        expect_contract(r, std::to_string(x) + " at " + std::to_string(j), Section::verify);
      }
    }
  }
}

// A split in which a row has no score that counts, before one that has.
TEST(AttentionSplitsContract, Scores) {
  const auto scores = [](const char* name, auto of) {
    AttentionRows r = like_a_model({2, 1, 64}, 600, 2, 39);
    for (std::size_t i = 0; i < r.q.size(); ++i) r.q[i] = i % 64 == 0 ? 1.0f : 0.0f;
    for (std::int64_t j = 0; j < 602; ++j) r.k[at(j * 64)] = bf16(of(j));
    expect_contract(r, name, Section::verify);
  };
  scores("first split of -infinity", [](std::int64_t j) { return j < 512 ? -kInfinity : 1.0f; });
  scores("second split of -infinity", [](std::int64_t j) { return j < 512 ? 1.0f : -kInfinity; });
  scores("infinity", [](std::int64_t j) { return j == 100 ? kInfinity : 0.0f; });
  scores("no numbers in the second split", [](std::int64_t j) { return j < 512 ? 1.0f : kNan; });
  scores("rising by 3", [](std::int64_t j) { return 24.0f * static_cast<float>(j); });
  scores("falling by 3", [](std::int64_t j) { return -24.0f * static_cast<float>(j); });
}

Row rounded(Row y) {
  for (float& x : y) x = bf16(x);
  return y;
}
// Seen: 2.15e-3 (head_dim 64), 2.16e-3 (128), 2.21e-3 (256); rounding y alone: 1.6e-3 to 1.7e-3.
TEST(AttentionSplitsAccuracy, InputsLikeAModels) {
  for (const int dim : {64, 128, 256}) {
    const AttentionRows r = like_a_model({1, 1, dim}, 4096 - 9, 9, 40);
    const std::vector<double> want = attention_in_float64(r.head(0));
    const double off = off_by(rounded(run(isas_here().front(), r, Section::verify)), want);
    std::printf("head_dim %d: %.3g relative L2 from float64, %.3g by rounding y alone\n", dim, off,
                off_by(rounded(Row(want.begin(), want.end())), want));
    EXPECT_LE(off, 2.5e-3);
  }
}

}  // namespace
}  // namespace nibble::test
