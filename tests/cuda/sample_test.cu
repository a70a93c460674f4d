// What ends a step, on the device against the CPU's: equal tokens, equal counts, equal
// log-probabilities.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "backends/cpu/kernels/sample.h"
#include "backends/cpu/ops/sample.h"
#include "backends/cpu/token_counts.h"
#include "backends/cuda/ops/sample.h"
#include "tests/cuda/device_buffer.h"
#include "tests/cuda/step_on_device.h"
#include "tests/support/buffers.h"

namespace nibble {
namespace {

using test::DeviceArray;
using test::DeviceMatrix;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::int32_t kRecords = 8;

// A step whose ranges are one slot each; every row is an output.
struct Step {
  Batch batch;
  std::vector<std::vector<std::int32_t>> counts;  // of each slot, this step's tokens among them
  std::int64_t vocab = 0;

  Step(std::mt19937& random, std::int64_t vocab_, const std::vector<std::int32_t>& rows_of_slots)
      : vocab(vocab_) {
    for (std::size_t slot = 0; slot < rows_of_slots.size(); ++slot) {
      Range r;
      r.section = Section::verify;
      r.slot = static_cast<std::int32_t>(slot);
      r.first_row = static_cast<std::int32_t>(batch.rows());
      r.rows = rows_of_slots[slot];
      batch.ranges.push_back(r);
      counts.emplace_back(static_cast<std::size_t>(vocab));
      for (std::int32_t& c : counts.back())
        c = random() % 4 == 0 ? 1 + static_cast<int>(random() % 2) : 0;
      for (std::int32_t i = 0; i < r.rows; ++i) {
        // few tokens, so that some come twice and some came before
        const auto token = static_cast<std::int32_t>(
            random() % static_cast<unsigned>(std::min<std::int64_t>(vocab, 3)));
        batch.output_rows.push_back(static_cast<std::int32_t>(batch.rows()));
        batch.tokens.push_back(token);
        ++counts.back()[static_cast<std::size_t>(token)];
        SampleParams how;
        how.slot = r.slot;
        batch.sampling.push_back(how);
      }
    }
  }
  std::int64_t outputs() const { return static_cast<std::int64_t>(batch.output_rows.size()); }

  std::vector<std::int32_t> on_cpu(const std::vector<float>& logits) const {
    cpu::Parallel parallel(1);
    std::vector<cpu::SampleRow> rows;
    for (const Range& r : batch.ranges) {
      for (std::int32_t i = r.first_row; i < r.first_row + r.rows; ++i) {
        const auto at = static_cast<std::size_t>(i);
        rows.push_back(
            {logits.data() + i * vocab, counts[static_cast<std::size_t>(r.slot)].data(),
             std::span(batch.tokens)
                 .subspan(at + 1, static_cast<std::size_t>(r.first_row + r.rows - i - 1)),
             &batch.sampling[at]});
      }
    }
    const test::Aligned workspace(cpu::sample_workspace_bytes(vocab, 1));
    std::vector<std::int32_t> tokens(rows.size(), -1);
    cpu::sample(cpu::available_isas().front(), parallel, rows, vocab, workspace.data, 1,
                tokens.data());
    return tokens;
  }

  std::vector<std::int32_t> on_device(const std::vector<float>& logits, std::int64_t gap) const {
    constexpr std::int64_t kBehind = 2;
    const test::StepOnDevice step(batch);
    cuda::Launch launch;
    launch.step = step.device();
    launch.max_rows = batch.rows() + kBehind;
    launch.max_outputs = outputs() + kBehind;
    DeviceMatrix<float> z(logits, outputs(), vocab, gap);
    std::vector<std::int32_t> all;
    for (const auto& slot : counts) all.insert(all.end(), slot.begin(), slot.end());
    DeviceArray<std::int32_t> of_slots(all), tokens(static_cast<std::size_t>(launch.max_outputs));
    DeviceArray<std::byte> workspace(cuda::sample_workspace_bytes(launch.max_outputs, vocab));
    cuda::SampleArgs args{z.view(Rows::outputs), {}, workspace.data(), tokens.data()};
    args.counts.counts = of_slots.data();
    args.counts.slots = static_cast<std::int32_t>(counts.size());
    args.counts.vocab = vocab;
    cuda::sample(launch, args);
    test::finish_device();
    EXPECT_EQ(z.damage() + of_slots.damage() + tokens.damage() + workspace.damage() + step.damage(),
              "");
    EXPECT_EQ(of_slots.download(), all);
    std::vector<std::int32_t> got = tokens.download();
    for (std::int64_t o = outputs(); o < launch.max_outputs; ++o) {
      EXPECT_EQ(got[static_cast<std::size_t>(o)], -1) << "wrote output " << o;
    }
    got.resize(static_cast<std::size_t>(outputs()));
    return got;
  }
};

std::string text(const SampleParams& p) {
  return " T " + std::to_string(p.temperature) + " k " + std::to_string(p.top_k) + " top_p " +
         std::to_string(p.top_p) + " min_p " + std::to_string(p.min_p) + " r " +
         std::to_string(p.repetition_penalty) + " seed " + std::to_string(p.seed);
}

void expect_equal(const Step& step, const std::vector<float>& logits, std::int64_t gap) {
  const std::vector<std::int32_t> want = step.on_cpu(logits), got = step.on_device(logits, gap);
  for (std::size_t o = 0; o < want.size(); ++o) {
    EXPECT_EQ(got[o], want[o]) << "vocab " << step.vocab << " output " << o
                               << text(step.batch.sampling[o]);
  }
}

std::vector<float> invented(std::mt19937& random, std::int64_t rows, std::int64_t vocab) {
  std::vector<float> z;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float widths[] = {0.01f, 1.0f, 4.0f, 30.0f};
    const float width = widths[random() % 4];
    const auto kind = random() % 6;  // coarse: many equals, zeros of both signs
    std::normal_distribution<float> normal(0, width);
    for (std::int64_t i = 0; i < vocab; ++i) {
      float v = kind <= 1 ? std::round(normal(random)) : normal(random);
      if (kind == 2 && random() % 50 == 0) v = random() % 2 ? kNan : -kInf;
      z.push_back(v);
    }
  }
  return z;
}

class CudaSample : public testing::Test {
 protected:
  void SetUp() override { NIBBLE_NEEDS_DEVICE(); }
  std::mt19937 random_{7};
  template <class... V>
  double pick(V... values) {
    const double all[] = {static_cast<double>(values)...};
    return all[random_() % std::size(all)];
  }
  void invent(SampleParams& how) {
    how.temperature = static_cast<float>(pick(0, 0.3, 0.7, 1, 1, 2, 50, 1e-38, 1e38));
    how.top_k = static_cast<int>(pick(0, 0, 1, 2, 20, 300, 4500, 100000));
    how.top_p = static_cast<float>(pick(1, 1, 0, 1e-6, 0.5, 0.9, 0.95, 0.999));
    how.min_p = static_cast<float>(pick(0, 0, 1e-9, 0.05, 0.5, 1));
    how.repetition_penalty = static_cast<float>(pick(1, 1, 1.3, 0.8));
    how.seed = random_() + (static_cast<std::uint64_t>(random_()) << 32);
    how.position = static_cast<std::int64_t>(random_());
  }
};

TEST_F(CudaSample, EqualsTheCpu) {
  for (int round = 0; round < 60; ++round) {
    const auto vocab =
        static_cast<std::int64_t>(pick(1, 2, 5, 63, 256, 257, 600, 1000, 5000, 9000));
    Step step(random_, vocab, {1, 3, 1, 2, 5});
    for (SampleParams& how : step.batch.sampling) invent(how);
    expect_equal(step, invented(random_, step.outputs(), vocab),
                 round % 3 == 0 ? 4 - vocab % 4 : round % 5);
  }
}

// More rows than have scratch of their own.
TEST_F(CudaSample, ManyRowsShareScratch) {
  for (const std::int64_t vocab : {700, 3001}) {
    Step step(random_, vocab, std::vector<std::int32_t>(37, 2));
    for (SampleParams& how : step.batch.sampling) invent(how);
    expect_equal(step, invented(random_, step.outputs(), vocab), 1);
  }
}

TEST_F(CudaSample, FullVocabulary) {
  constexpr std::int64_t kVocab = 248320;
  for (const float width : {0.1f, 3.0f}) {
    Step step(random_, kVocab, {1, 2, 1, 2, 1, 1});
    const float temperatures[] = {0.7f, 0, 1, 1e6f, 0.7f, 1, 0, 1e-3f};
    const int top_k[] = {20, 0, 0, 0, 2000, 200000, 0, 0};
    for (std::size_t o = 0; o < step.batch.sampling.size(); ++o) {
      SampleParams& how = step.batch.sampling[o];
      how.temperature = temperatures[o];
      how.top_k = top_k[o];
      how.top_p = o % 2 ? 0.9f : 1.0f;
      how.repetition_penalty = o % 3 == 1 ? 1.1f : 1.0f;
      how.seed = 99 + o;
    }
    std::normal_distribution<float> normal(0, width);
    std::vector<float> z(static_cast<std::size_t>(step.outputs() * kVocab));
    for (float& v : z) v = normal(random_);
    expect_equal(step, z, 0);
  }
}

TEST_F(CudaSample, Edges) {
  const std::vector<std::vector<float>> rows = {{kNan, -5, kNan, -kInf, 0},
                                                {kNan, -5, kInf, 7, kInf},
                                                {kNan, -kInf, kNan, kNan, -kInf},
                                                {-0.0f, 0, -0.0f, -1, 0},
                                                {-1, 0, -0.0f, 0, -1},
                                                {3, 3, 3, 3, 3},
                                                {1e38f, -3e38f, 1e38f, 3e38f, 0},
                                                {-1e-45f, 1e-45f, -0.0f, 0, 1e-45f}};
  std::vector<float> z;
  for (const auto& row : rows) z.insert(z.end(), row.begin(), row.end());
  for (const float temperature : {0.0f, 1.0f, 1e-45f, 1e-30f, 1e30f}) {
    for (const int top_k : {0, 1, 3, 5, 6}) {
      for (std::uint64_t seed = 0; seed < 6; ++seed) {
        Step step(random_, 5, std::vector<std::int32_t>(rows.size(), 1));
        for (SampleParams& how : step.batch.sampling) {
          how.temperature = temperature;
          how.top_k = top_k;
          how.seed = seed;
          how.repetition_penalty = seed % 3 == 2 ? 1.5f : 1.0f;
          how.top_p = seed % 2 ? 0.7f : 1.0f;
        }
        expect_equal(step, z, 0);
      }
    }
  }
}

TEST_F(CudaSample, NoOutputs) {
  Step step(random_, 300, {});
  EXPECT_TRUE(step.on_device({}, 0).empty());
}

TEST_F(CudaSample, LogprobPartsEqualTheCpu) {
  for (const std::int64_t vocab : {1, 2, 31, 64, 512, 513, 5000, 248320}) {
    Step step(random_, vocab, {3, 2});
    std::vector<float> z = invented(random_, 5, vocab);
    // largest is a zero, of which the CPU keeps a certain one; nothing above -inf; NaN
    for (std::int64_t i = 0; i < vocab; ++i) {
      z[static_cast<std::size_t>(i)] = random_() % 3 == 0 ? -100.0f : random_() % 2 ? 0.0f : -0.0f;
      z[static_cast<std::size_t>(3 * vocab + i)] = -kInf;
    }
    z[static_cast<std::size_t>(4 * vocab + vocab / 2)] = kNan;
    for (std::int64_t o = 0; o < 5; ++o) {
      step.batch.targets.push_back(
          static_cast<std::int32_t>(random_() % static_cast<unsigned>(vocab)));
    }
    cpu::Parallel parallel(1);
    std::vector<double> want(5);
    cpu::token_logprob(cpu::available_isas().front(), parallel, z.data(), vocab, vocab,
                       step.batch.targets, want.data());
    const test::StepOnDevice on_device(step.batch);
    cuda::Launch launch;
    launch.step = on_device.device();
    launch.max_rows = launch.max_outputs = 7;
    DeviceMatrix<float> logits(z, 5, vocab, 3);
    DeviceArray<cuda::LogprobParts> parts(7);
    cuda::token_logprob(launch, {logits.view(Rows::outputs), parts.data()});
    test::finish_device();
    EXPECT_EQ(logits.damage() + parts.damage(), "");
    const std::vector<cuda::LogprobParts> got = parts.download();
    for (std::size_t o = 0; o < 5; ++o) {
      const double have = static_cast<double>(got[o].target) - static_cast<double>(got[o].max) -
                          std::log(static_cast<double>(got[o].sum));
      EXPECT_TRUE(want[o] != want[o] ? have != have
                                     : std::memcmp(&have, &want[o], sizeof have) == 0)
          << "vocab " << vocab << " output " << o << ": " << have << ", expected " << want[o];
      float largest = 0, sum = 0;
      cpu::portable::sample_kernels().sum_exp(z.data() + static_cast<std::int64_t>(o) * vocab,
                                              vocab, &largest, &sum);
      EXPECT_TRUE(test::same_bits(got[o].max, largest) && test::same_bits(got[o].sum, sum))
          << "vocab " << vocab << " output " << o;
    }
    EXPECT_TRUE(got[5].sum != got[5].sum) << "wrote behind the outputs";
  }
}

// Steps of all sections with tokens taken back, then save, load and reset.
TEST_F(CudaSample, CountsEqualTheCpu) {
  constexpr std::int64_t kVocab = 333, kSlots = 5;
  StateSizes sizes{};
  sizes.slots = kSlots;
  sizes.vocab = kVocab;
  sizes.records = kRecords;
  const std::uint64_t bytes = cpu::TokenCounts::bytes(sizes);
  const test::Aligned memory(bytes);
  std::memset(memory.data, 0, bytes);
  cpu::TokenCounts on_cpu(sizes, memory.data);
  DeviceArray<std::int32_t> counts(kSlots * kVocab), recent(kSlots * kRecords), saved(kVocab);
  counts.fill(0);
  const cuda::TokenCountsView view{counts.data(), recent.data(), kSlots, kRecords, kVocab};
  std::map<std::int32_t, std::vector<std::int32_t>>
      last;  // of the slot's last decode or verify step
  for (int round = 0; round < 30; ++round) {
    Batch batch;
    for (std::int32_t slot = 0; slot < kSlots; ++slot) {
      if (last.contains(slot) && random_() % 2 == 0) {
        for (std::size_t i = random_() % (last[slot].size() + 1); i < last[slot].size(); ++i) {
          batch.taken_back.push_back({slot, last[slot][i]});
        }
      }
      last.erase(slot);
      Range r;
      r.slot = slot;
      r.section = slot < 1 ? Section::decode : slot < 3 ? Section::verify : Section::prefill;
      r.first_row = static_cast<std::int32_t>(batch.rows());
      r.rows = slot < 1   ? 1
               : slot < 3 ? 1 + static_cast<int>(random_() % kRecords)
                          : static_cast<int>(random_() % 300);
      if (r.rows == 0) continue;
      for (std::int32_t i = 0; i < r.rows; ++i) {
        batch.tokens.push_back(static_cast<std::int32_t>(random_() % (round % 2 ? kVocab : 4)));
        if (r.section != Section::prefill) last[slot].push_back(batch.tokens.back());
      }
      batch.ranges.push_back(r);
    }
    on_cpu.step(batch);
    const test::StepOnDevice step(batch);
    cuda::Launch launch;
    launch.step = step.device();
    launch.max_rows = round % 3 == 0 ? 64 : 1024;  // threads take several rows where they must
    cuda::count_tokens(launch, view, nullptr);
    test::finish_device();
    const std::vector<std::int32_t> got = counts.download();
    for (std::int32_t slot = 0; slot < kSlots; ++slot) {
      ASSERT_TRUE(
          std::equal(on_cpu.row(slot), on_cpu.row(slot) + kVocab, got.begin() + slot * kVocab))
          << round;
    }
  }
  ASSERT_EQ(counts.damage() + recent.damage(), "");
  const auto pending = static_cast<std::int32_t>(last[2].size());
  for (std::int32_t keep = 0; keep <= pending; ++keep) {
    cuda::counts_save(nullptr, view, 2, keep, pending, saved.data());
    cuda::counts_reset(nullptr, view, 1);
    cuda::counts_load(nullptr, view, 1, saved.data());
    test::finish_device();
    on_cpu.load(1, on_cpu.save(2, keep, pending));
    const std::vector<std::int32_t> got = counts.download();
    for (const std::int32_t slot : {0, 1, 2, 3}) {
      ASSERT_TRUE(
          std::equal(on_cpu.row(slot), on_cpu.row(slot) + kVocab, got.begin() + slot * kVocab))
          << keep;
    }
  }
  cuda::counts_reset(nullptr, view, 2);
  test::finish_device();
  const std::vector<std::int32_t> got = counts.download();
  EXPECT_EQ(std::count(got.begin() + 2 * kVocab, got.begin() + 3 * kVocab, 0), kVocab);
  EXPECT_NE(std::count(got.begin() + 3 * kVocab, got.begin() + 4 * kVocab, 0), kVocab);
  EXPECT_EQ(counts.damage() + saved.damage(), "");
}

// Rows that name an output of the step before: the token is counted, recorded and there for whoever reads it later.
TEST_F(CudaSample, CountsResolveReferences) {
  constexpr std::int32_t kSlots = 300, kOutputs = 7;
  constexpr std::int64_t kVocab = 50;
  DeviceArray<std::int32_t> counts(kSlots * kVocab), recent(kSlots * kRecords), sampled(kOutputs);
  sampled.upload({3, 49, 0, 11, 3, 25, 8});
  const std::vector<std::int32_t> ids = sampled.download();
  const cuda::TokenCountsView view{counts.data(), recent.data(), kSlots, kRecords, kVocab};
  for (const std::int64_t max_rows : {64, 1024}) {  // threads take several rows, or one
    counts.fill(0);
    Batch batch;
    std::vector<std::int32_t> expected;
    for (std::int32_t slot = 0; slot < kSlots; ++slot) {
      const std::int32_t o = slot * 5 % kOutputs;
      batch.tokens.push_back(slot % 3 == 0 ? slot % 50 : Batch::from_output(o));
      expected.push_back(slot % 3 == 0 ? slot % 50 : ids[static_cast<std::size_t>(o)]);
      Range r;
      r.section = Section::decode;
      r.slot = slot;
      r.first_row = slot;
      r.rows = 1;
      batch.ranges.push_back(r);
    }
    const test::StepOnDevice step(batch);
    cuda::Launch launch;
    launch.step = step.device();
    launch.max_rows = max_rows;
    cuda::count_tokens(launch, view, sampled.data());
    test::finish_device();
    std::vector<std::int32_t> tokens(kSlots);
    ASSERT_EQ(cudaMemcpy(tokens.data(), step.host().tokens, tokens.size() * sizeof(std::int32_t), cudaMemcpyDeviceToHost),
              cudaSuccess);
    EXPECT_EQ(tokens, expected) << max_rows;
    const std::vector<std::int32_t> got = counts.download(), newest = recent.download();
    for (std::int32_t slot = 0; slot < kSlots; ++slot) {
      const auto at = static_cast<std::size_t>(slot);
      for (std::int32_t token = 0; token < kVocab; ++token) {
        ASSERT_EQ(got[at * kVocab + static_cast<std::size_t>(token)], token == expected[at] ? 1 : 0) << slot << ' ' << token;
      }
      ASSERT_EQ(newest[at * kRecords], expected[at]) << slot;
    }
  }
  EXPECT_EQ(counts.damage() + recent.damage() + sampled.damage(), "");
}

}  // namespace
}  // namespace nibble
