// After a warm-up, a step allocates nothing: neither by operator new nor by malloc.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/memory.h"
#include "nibble/error.h"
#include "tests/backend/toy.h"
#include "tests/support/count_allocations.h"

namespace nibble::cpu {
namespace {

struct Steps {
  explicit Steps(int threads) : backend({threads, ""}) {
    backend.prepare(test::toy_model(sizes), test::toy_state(sizes), {});
    for (std::int32_t i = 0; i < 4; ++i) {
      test::Sequence s;
      s.slot = i;
      for (std::int32_t p = 0; p < 16; ++p) s.pages.push_back(i * 16 + p);
      s.sampling = {.temperature = i % 2 ? 0.8f : 0.0f,
                    .top_p = 0.9f,
                    .repetition_penalty = 1.1f,
                    .top_k = 10 * (i / 2)};
      sequences.push_back(s);
    }
    run(test::kMixed, Section::prefill, 50);
  }

  // Batches are the caller's: they are made before counting.
  std::uint64_t run(std::size_t program, Section section, std::size_t rows) {
    test::BatchBuilder builder;
    for (test::Sequence& s : sequences) {
      builder.add(section, s, std::vector<std::int32_t>(rows, 7 + s.slot), rows - 1);
    }
    if (program == test::kScore) {
      builder.batch.sampling.clear();
      builder.batch.targets.assign(builder.batch.output_rows.size(), 3);
    }
    return test::allocations_in([&] { backend.run(program, builder.batch, out, {}); });
  }

  test::ToySizes sizes;
  CpuBackend backend;
  std::vector<test::Sequence> sequences;
  StepOutput out;
};

TEST(Allocations, TheCounterCounts) {
  const std::vector<int>* volatile p = nullptr;  // else the compiler leaves the pair out
  const std::uint64_t counted = test::allocations_in([&] { p = new std::vector<int>(100); });
  delete p;
  EXPECT_GE(counted, 2u);
}

TEST(Allocations, NoneInAStep) {
  for (const int threads : {1, 2}) {
    Steps steps(threads);
    for (int warm = 0; warm < 5; ++warm) {
      steps.run(test::kDecode, Section::decode, 1);
      steps.run(test::kVerify, Section::verify, 3);
      steps.run(test::kMixed, Section::prefill, 20);
      steps.run(test::kScore, Section::prefill, 5);
    }
    for (int round = 0; round < 5; ++round) {
      EXPECT_EQ(steps.run(test::kDecode, Section::decode, 1), 0u) << threads;
      EXPECT_EQ(steps.run(test::kVerify, Section::verify, 3), 0u) << threads;
      EXPECT_EQ(steps.run(test::kMixed, Section::prefill, 20), 0u) << threads;
      EXPECT_EQ(steps.run(test::kScore, Section::prefill, 5), 0u) << threads;
    }
  }
}

TEST(Allocations, EveryArenaIsCounted) {
  std::uint64_t made = 0;
  const Block none(0, "test", made);
  EXPECT_EQ(made, 0u);
  const Block one(100, "test", made), two(5 << 20, "test", made);
  EXPECT_EQ(made, 2u);
}

// The counter of the stats is no constant: a step in which arenas come to be says how many. Loading
// again, given up half way, makes three and leaves what was loaded as it was.
TEST(Allocations, StatsCountTheArenasMadeInsideAStep) {
  Steps steps(1);
  EXPECT_EQ(steps.backend.stats().allocations, 0u) << "those of prepare() are not a step's";
  test::BatchBuilder builder;
  for (test::Sequence& s : steps.sequences) builder.add(Section::decode, s, {7}, 0);
  bool again = true;
  steps.backend.run(test::kDecode, builder.batch, steps.out, [&](const Op&, auto, auto, auto) {
    if (!std::exchange(again, false)) return;
    EXPECT_THROW(steps.backend.prepare(test::toy_model(steps.sizes), test::toy_state(steps.sizes),
                                       [](std::uint64_t) { return false; }),
                 Error);
  });
  EXPECT_EQ(steps.backend.stats().allocations, 3u);
  steps.run(test::kDecode, Section::decode, 1);
  EXPECT_EQ(steps.backend.stats().allocations, 3u);
}

}  // namespace
}  // namespace nibble::cpu
