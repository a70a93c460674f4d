#include "backends/cpu/ops/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/numerics/philox.h"
#include "core/numerics/reduce.h"

namespace nibble::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The contract of core/ops/ops.h, read aloud.
std::int32_t by_the_contract(std::vector<float> z, const std::vector<std::int32_t>& counts,
                             const SampleParams& how) {
  for (std::size_t i = 0; i < z.size(); ++i) {
    if (z[i] != z[i]) z[i] = -kInf;
    if (how.repetition_penalty != 1 && !counts.empty() && counts[i] > 0) {
      z[i] = z[i] > 0 ? z[i] / how.repetition_penalty : z[i] * how.repetition_penalty;
    }
  }
  std::vector<std::int32_t> list(z.size());
  std::iota(list.begin(), list.end(), 0);
  const auto at = [&](std::int32_t id) { return z[static_cast<std::size_t>(id)]; };
  std::stable_sort(list.begin(), list.end(), [&](auto a, auto b) { return at(a) > at(b); });
  if (how.temperature == 0) return list[0];
  if (how.top_k > 0 && static_cast<std::size_t>(how.top_k) < list.size()) {
    list.resize(static_cast<std::size_t>(how.top_k));
  }
  std::vector<float> p;
  for (const std::int32_t id : list) {
    const float x =
        at(id) == at(list[0]) ? 1.0f : num::exp((at(id) - at(list[0])) / how.temperature);
    if (x < 0x1p-24f) break;
    p.push_back(x);
  }
  const float total = num::tree_sum(p.data(), static_cast<std::int64_t>(p.size()));
  std::vector<float> running;
  for (const float x : p) {
    if (!running.empty() && x < how.min_p) break;
    running.push_back(running.empty() ? x : running.back() + x);
    if (how.top_p < 1 && running.back() >= how.top_p * total) break;
  }
  const float u = num::uniform(how.seed, static_cast<std::uint64_t>(how.position), 0);
  for (std::size_t i = 0; i < running.size(); ++i) {
    if (running[i] > u * running.back()) return list[i];
  }
  ADD_FAILURE() << "no candidate was drawn";
  return -1;
}

struct Sampler {
  Sampler(Isa with, int threads, std::int64_t lane_count)
      : isa(with), parallel(threads), lanes(lane_count) {}

  std::vector<std::int32_t> operator()(const std::vector<SampleRow>& rows, std::int64_t vocab) {
    workspace.assign(sample_workspace_bytes(vocab, lanes) + 64, std::byte{0xA5});
    void* at = workspace.data();
    std::size_t space = workspace.size();
    std::align(64, workspace.size() - 64, at, space);
    std::vector<std::int32_t> tokens(rows.size(), -1);
    sample(isa, parallel, rows, vocab, static_cast<std::byte*>(at), lanes, tokens.data());
    return tokens;
  }
  std::int32_t one(const std::vector<float>& logits, const SampleParams& how,
                   const std::vector<std::int32_t>& counts = {},
                   std::span<const std::int32_t> later = {}) {
    return (*this)({{logits.data(), counts.empty() ? nullptr : counts.data(), later, &how}},
                   static_cast<std::int64_t>(logits.size()))[0];
  }

  Isa isa;
  Parallel parallel;
  std::int64_t lanes;
  std::vector<std::byte> workspace;
};

std::vector<float> normal_logits(std::mt19937& random, std::size_t vocab, float width,
                                 bool coarse) {
  std::normal_distribution<float> normal(0, width);
  std::vector<float> z(vocab);
  for (float& v : z) v = coarse ? std::round(normal(random)) : normal(random);
  return z;
}

class Sample : public testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(Isas, Sample, testing::ValuesIn(available_isas()),
                         [](const auto& p) { return std::string(isa_name(p.param)); });

TEST_P(Sample, EqualsTheContract) {
  Sampler sampler(GetParam(), 1, 1);
  std::mt19937 random(7);
  const auto pick = [&](auto... values) {
    const double all[] = {static_cast<double>(values)...};
    return all[random() % std::size(all)];
  };
  for (int round = 0; round < 800; ++round) {
    const auto vocab = static_cast<std::size_t>(pick(1, 2, 5, 63, 256, 257, 600, 1000, 5000, 9000));
    const std::vector<float> z =
        normal_logits(random, vocab, static_cast<float>(pick(0.01, 1, 4, 30)), random() % 3 == 0);
    std::vector<std::int32_t> counts(vocab);
    for (std::int32_t& c : counts) c = random() % 4 == 0 ? 1 + static_cast<int>(random() % 3) : 0;
    SampleParams how;
    how.temperature = static_cast<float>(pick(0, 0.3, 0.7, 1, 1, 2, 50));
    how.top_k = static_cast<int>(pick(0, 0, 1, 2, 20, 300, 4500, 100000));
    how.top_p = static_cast<float>(pick(1, 1, 0, 1e-6, 0.5, 0.9, 0.999));
    how.min_p = static_cast<float>(pick(0, 0, 1e-9, 0.05, 0.5, 1));
    how.repetition_penalty = static_cast<float>(pick(1, 1, 1.3, 0.8));
    how.seed = random() + (static_cast<std::uint64_t>(random()) << 32);
    how.position = static_cast<std::int64_t>(random());
    EXPECT_EQ(sampler.one(z, how, counts), by_the_contract(z, counts, how))
        << "round " << round << " vocab " << vocab << " T " << how.temperature << " k " << how.top_k
        << " top_p " << how.top_p << " min_p " << how.min_p << " r " << how.repetition_penalty;
  }
}

TEST_P(Sample, EqualsTheContractAtFullVocabulary) {
  Sampler sampler(GetParam(), 1, 1);
  std::mt19937 random(8);
  constexpr std::size_t kVocab = 248320;
  for (const float width : {0.1f, 3.0f}) {
    const std::vector<float> z = normal_logits(random, kVocab, width, false);
    for (const int top_k : {0, 20}) {
      for (const float top_p : {1.0f, 0.9f}) {
        for (const float temperature : {0.7f, 1e6f}) {
          const SampleParams how{.temperature = temperature,
                                 .top_p = top_p,
                                 .top_k = top_k,
                                 .seed = 99,
                                 .position = top_k};
          EXPECT_EQ(sampler.one(z, how), by_the_contract(z, {}, how))
              << width << " " << top_k << " " << top_p << " " << temperature;
        }
      }
    }
  }
}

TEST_P(Sample, GreedyTakesTheLowestOfEquals) {
  Sampler sampler(GetParam(), 1, 1);
  const SampleParams greedy;
  for (const std::size_t vocab : {1u, 3u, 64u, 255u, 256u, 257u, 1000u, 2560u}) {
    for (std::size_t first = 0; first < vocab; first += 1 + vocab / 17) {
      std::vector<float> z(vocab, -3.0f);
      for (std::size_t i = first; i < vocab; i += 5) z[i] = -1.0f;
      EXPECT_EQ(sampler.one(z, greedy), static_cast<std::int32_t>(first)) << vocab;
    }
  }
  EXPECT_EQ(sampler.one({-0.0f, 0.0f, -1.0f}, greedy), 0);  // zeros are equal
  EXPECT_EQ(sampler.one({-1.0f, 0.0f, -0.0f}, greedy), 1);
}

TEST_P(Sample, NanIsTheLowestAndInfinityTheLargest) {
  Sampler sampler(GetParam(), 1, 1);
  for (const float temperature : {0.0f, 1.0f, 1e-30f, 1e30f}) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      const SampleParams how{.temperature = temperature, .seed = seed};
      EXPECT_EQ(sampler.one({kNan, -5.0f, kNan, -kInf}, how), 1);
      EXPECT_EQ(sampler.one({kNan, -5.0f, kInf, 7.0f}, how), 2);
      const std::int32_t none = sampler.one({kNan, -kInf, kNan}, how);
      EXPECT_TRUE(temperature == 0 ? none == 0 : none >= 0 && none < 3) << none;
    }
  }
  std::vector<float> z(700, kNan);
  EXPECT_EQ(sampler.one(z, {}), 0);
  z[650] = -1e30f;
  EXPECT_EQ(sampler.one(z, {}), 650);
}

TEST_P(Sample, TinyTemperatureIsGreedyAndHugeIsUniform) {
  Sampler sampler(GetParam(), 1, 1);
  std::mt19937 random(3);
  const std::vector<float> z = normal_logits(random, 3000, 8, false);
  const auto best = std::max_element(z.begin(), z.end()) - z.begin();
  std::vector<int> seen(8);
  for (std::uint64_t seed = 0; seed < 8000; ++seed) {
    if (seed < 300) {
      for (const float t : {1e-6f, 1e-38f, 1e-45f}) {
        const SampleParams cold{.temperature = t, .seed = seed};
        ASSERT_EQ(sampler.one(z, cold), best) << t;
      }
    }
    const SampleParams hot{.temperature = 1e38f, .seed = seed};
    ++seen[static_cast<std::size_t>(sampler.one({1, 9, -3, 4, 0, 0, 100, -50}, hot))];
  }
  for (const int n : seen) EXPECT_NEAR(n, 1000, 5 * std::sqrt(1000.0 * 7 / 8));
}

// Chi-square of 100,000 draws against probabilities computed in double.
TEST_P(Sample, DrawsFollowTheDistribution) {
  Sampler sampler(GetParam(), 1, 1);
  std::mt19937 random(11);
  const std::vector<float> z = normal_logits(random, 50, 1.5f, false);
  for (const float temperature : {0.7f, 1.0f, 1.8f}) {
    std::vector<double> p(z.size());
    double total = 0;
    for (std::size_t i = 0; i < z.size(); ++i) {
      p[i] = std::exp(static_cast<double>(z[i]) / static_cast<double>(temperature));
      total += p[i];
    }
    std::vector<int> seen(z.size());
    constexpr int kDraws = 100000;
    for (int i = 0; i < kDraws; ++i) {
      const SampleParams how{.temperature = temperature, .seed = 5, .position = i};
      ++seen[static_cast<std::size_t>(sampler.one(z, how))];
    }
    double chi = 0;
    for (std::size_t i = 0; i < z.size(); ++i) {
      const double expected = kDraws * p[i] / total;
      chi += (seen[i] - expected) * (seen[i] - expected) / expected;
    }
    EXPECT_LT(chi, 49 + 4 * std::sqrt(2.0 * 49)) << temperature;  // 49 degrees of freedom
    EXPECT_GT(chi, 49 - 4 * std::sqrt(2.0 * 49)) << temperature;  // nor suspiciously even
  }
}

TEST_P(Sample, FiltersLeaveWhatTheySay) {
  Sampler sampler(GetParam(), 1, 1);
  const std::vector<float> z = {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};
  const auto drawn = [&](SampleParams how) {
    std::vector<bool> seen(z.size());
    how.temperature = 1;
    for (how.seed = 0; how.seed < 400; ++how.seed) {
      seen[static_cast<std::size_t>(sampler.one(z, how))] = true;
    }
    return seen;
  };
  using Seen = std::vector<bool>;
  EXPECT_EQ(drawn({}), (Seen{true, true, true, true}));
  EXPECT_EQ(drawn({.top_k = 2}), (Seen{false, true, false, true}));
  EXPECT_EQ(drawn({.top_p = 0.39f}), (Seen{false, true, false, false}));
  EXPECT_EQ(drawn({.top_p = 0.41f}), (Seen{false, true, false, true}));
  EXPECT_EQ(drawn({.top_p = 0.75f}), (Seen{false, true, true, true}));
  EXPECT_EQ(drawn({.min_p = 0.6f}), (Seen{false, true, false, true}));
  EXPECT_EQ(drawn({.min_p = 1.0f}), (Seen{false, true, false, false}));
}

TEST_P(Sample, PenaltyCountsOnlyWhatStandsBefore) {
  Sampler sampler(GetParam(), 1, 1);
  SampleParams how{.repetition_penalty = 2.0f};
  EXPECT_EQ(sampler.one({3, 2, 1}, how, {1, 0, 0}), 1);     // 3 / 2 < 2
  EXPECT_EQ(sampler.one({-1, -3, -4}, how, {1, 1, 0}), 0);  // -2, -6, -4
  EXPECT_EQ(sampler.one({-2, -3, -9}, how, {1, 0, 0}), 1);  // -4, -3
  EXPECT_EQ(sampler.one({3, 2, 1}, {}, {1, 0, 0}), 0);      // r = 1: no penalty
  // token 0 came only behind the row: it does not count; once before and once behind: it does
  const std::vector<std::int32_t> behind = {0};
  EXPECT_EQ(sampler.one({3, 2, 1}, how, {1, 0, 0}, behind), 0);
  EXPECT_EQ(sampler.one({3, 2, 1}, how, {2, 0, 0}, behind), 1);
  const std::vector<std::int32_t> twice = {0, 0};
  EXPECT_EQ(sampler.one({3, 2, 1}, how, {2, 0, 0}, twice), 0);
  // r < 1 raises; taking that back must lower the maximum of the block again
  how.repetition_penalty = 0.5f;
  EXPECT_EQ(sampler.one({3, 4, 1}, how, {1, 0, 0}), 0);
  EXPECT_EQ(sampler.one({3, 4, 1}, how, {1, 0, 0}, behind), 1);
  how.temperature = 1e-3f;
  EXPECT_EQ(sampler.one({3, 4, 1}, how, {1, 0, 0}, behind), 1);
}

TEST_P(Sample, ARowDoesNotFeelItsNeighbours) {
  std::mt19937 random(21);
  constexpr std::size_t kVocab = 2000, kRows = 23;
  std::vector<std::vector<float>> logits;
  std::vector<SampleParams> how(kRows);
  std::vector<std::int32_t> counts(kVocab);
  for (std::int32_t& c : counts) c = static_cast<int>(random() % 2);
  for (std::size_t r = 0; r < kRows; ++r) {
    logits.push_back(normal_logits(random, kVocab, 2, r % 5 == 0));
    how[r] = {.temperature = 0.4f * static_cast<float>(r % 4),
              .top_p = r % 3 ? 0.95f : 1,
              .repetition_penalty = r % 2 ? 1.1f : 1,
              .top_k = static_cast<int>(r % 3) * 40,
              .seed = r,
              .position = static_cast<std::int64_t>(1000 + r)};
  }
  std::vector<std::int32_t> alone;
  Sampler single(GetParam(), 1, 1);
  for (std::size_t r = 0; r < kRows; ++r) alone.push_back(single.one(logits[r], how[r], counts));
  for (const int threads : {1, 2, 7}) {
    for (const int lanes : {1, 3, 8}) {
      Sampler sampler(GetParam(), threads, lanes);
      std::vector<SampleRow> rows;
      std::vector<std::int32_t> expected;
      for (std::size_t i = 0; i < kRows; ++i) {
        const std::size_t r = (i * 7 + 3) % kRows;  // another order
        rows.push_back({logits[r].data(), counts.data(), {}, &how[r]});
        expected.push_back(alone[r]);
      }
      EXPECT_EQ(sampler(rows, kVocab), expected);
    }
  }
}

TEST_P(Sample, LogprobsAreThoseOfDouble) {
  std::mt19937 random(5);
  for (const std::size_t vocab : {1u, 31u, 512u, 513u, 5000u, 248320u}) {
    constexpr std::size_t kRows = 3;
    const std::size_t stride = vocab + 5;
    std::vector<float> z = normal_logits(random, kRows * stride, 4, false);
    std::vector<std::int32_t> targets;
    for (std::size_t r = 0; r < kRows; ++r) targets.push_back(static_cast<int>(random() % vocab));
    for (const int threads : {1, 2, 7}) {
      Parallel parallel(threads);
      std::vector<double> got(kRows, 1);
      token_logprob(GetParam(), parallel, z.data(), static_cast<std::int64_t>(stride),
                    static_cast<std::int64_t>(vocab), targets, got.data());
      for (std::size_t r = 0; r < kRows; ++r) {
        const float* const row = z.data() + r * stride;
        const double most = static_cast<double>(*std::max_element(row, row + vocab));
        double sum = 0;
        for (std::size_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(row[i]) - most);
        const double expected = static_cast<double>(row[targets[r]]) - most - std::log(sum);
        EXPECT_NEAR(got[r], expected, 4e-6) << vocab;  // seen: 1.5e-6, f32 sums
      }
    }
  }
}

TEST(SampleIsas, LogprobsAreTheSameBits) {
  std::mt19937 random(6);
  const std::vector<float> z = normal_logits(random, 3001, 3, false);
  std::vector<double> got;
  for (const Isa isa : available_isas()) {
    Parallel parallel(1);
    double value = 0;
    const std::int32_t target = 17;
    token_logprob(isa, parallel, z.data(), 3001, 3001, {&target, 1}, &value);
    got.push_back(value);
  }
  ASSERT_FALSE(got.empty());
  for (const double v : got) EXPECT_EQ(v, got[0]);
}

}  // namespace
}  // namespace nibble::cpu
