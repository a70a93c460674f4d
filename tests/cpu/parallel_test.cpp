// How many threads: what may be asked for, what is left behind, what happens when the system says no.
#include "backends/cpu/parallel.h"

#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/partitioner.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <fstream>

#include "nibble/error.h"

namespace nibble::cpu {
namespace {

using oneapi::tbb::global_control;

std::size_t allowed() {
  return global_control::active_value(global_control::max_allowed_parallelism);
}

Error refusal(int threads) {
  try {
    const Parallel parallel(threads);
  } catch (const Error& e) {
    return e;
  }
  return {ErrorCode::internal, "nothing was thrown"};
}

TEST(Parallel, RefusesNumbersOutOfRangeAndLeavesNothingBehind) {
  const std::size_t before = allowed();
  for (const int threads : {-1, most_threads() + 1, INT_MAX}) {
    const Error e = refusal(threads);
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(e.what(), "[cpu] threads: expected 0 (all) to " + std::to_string(most_threads()) +
                            ", found " + std::to_string(threads));
    EXPECT_EQ(allowed(), before);
  }
}

TEST(Parallel, TheProcessIsAsBeforeOnceTheArenasAreGone) {
  const std::size_t before = allowed();
  const int many = oneapi::tbb::info::default_concurrency() + 5;
  {
    const Parallel large(many);
    EXPECT_EQ(allowed(), static_cast<std::size_t>(many));
    { const Parallel small(2); }
    EXPECT_EQ(allowed(), static_cast<std::size_t>(many));
  }
  EXPECT_EQ(allowed(), before);
}

TEST(Parallel, CoversEveryElementOnce) {
  for (const int threads : {0, 1, 2, 7}) {
    Parallel parallel(threads);
    std::vector<std::atomic<int>> seen(1000);
    parallel(1000, 3, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
    });
    for (const auto& n : seen) ASSERT_EQ(n, 1);
  }
}

// What a program sees that has an arena of its own, smaller than the machine, and calls from inside it.
// The most bodies that ever ran at once, the caller's among them.
int threads_at_work(Parallel& parallel, std::int64_t items) {
  std::atomic<int> now{0}, most{0};
  for (int turn = 0; turn < 50; ++turn) {
    parallel(items, 1, [&](std::int64_t, std::int64_t) {
      const int here = ++now;
      int known = most;
      while (here > known && !most.compare_exchange_weak(known, here)) {
      }
      const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
      while (std::chrono::steady_clock::now() < until) {
      }
      --now;
    });
  }
  return most;
}

TEST(Parallel, InsideAnArenaOfTheProgramNoMoreThreadsRunThanWereAskedFor) {
  constexpr std::int64_t kItems = 64;
  for (const int threads : {1, 2, 3}) {
    Parallel parallel(threads);
    oneapi::tbb::task_arena program(2);
    std::atomic<int> most{0};
    program.execute([&] { most = threads_at_work(parallel, kItems); });
    EXPECT_LE(most, threads);
    EXPECT_GE(most, 1);
  }
}

// Both threads of the program's arena call at once: one model each, as many threads as asked for each.
TEST(Parallel, ArenasOfTwoCallersKeepToTheirOwnShare) {
  Parallel first(2), second(1);
  Parallel* const both[] = {&first, &second};
  int most[2] = {};
  oneapi::tbb::task_arena program(2);
  program.execute([&] {
    oneapi::tbb::parallel_for(
        oneapi::tbb::blocked_range<int>(0, 2),
        [&](const oneapi::tbb::blocked_range<int>& r) {
          for (int i = r.begin(); i < r.end(); ++i) most[i] = threads_at_work(*both[i], 64);
        },
        oneapi::tbb::simple_partitioner());
  });
  EXPECT_LE(most[0], 2);
  EXPECT_EQ(most[1], 1);
}

std::uint64_t address_space() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t pages = 0;
  statm >> pages;
  return pages * 4096;
}

// In a process of its own: room for a few stacks, then 200 threads are asked for.
[[noreturn]] void ask_with_little_memory(int threads) {
  rlimit limit{};
  limit.rlim_cur = limit.rlim_max = address_space() + (std::uint64_t{160} << 20);
  setrlimit(RLIMIT_AS, &limit);
  const Error e = refusal(threads);
  const std::string text = e.what();
  const bool refused = e.code() == ErrorCode::out_of_memory &&
                       text.find("threads: expected to start 200") != std::string::npos &&
                       text.find("lower threads") != std::string::npos;
  const bool ran = text == "nothing was thrown";
  std::fprintf(stderr, "%s\n", text.c_str());
  std::_Exit(threads == 0 ? (ran ? 0 : 1) : (refused ? 0 : 1));
}

TEST(ParallelDeathTest, TooFewThreadsAreAnErrorNotTheEnd) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's shadow needs more address space than the limit";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ask_with_little_memory(200), testing::ExitedWithCode(0), "lower threads");
  EXPECT_EXIT(ask_with_little_memory(0), testing::ExitedWithCode(0), "nothing was thrown");
}

}  // namespace
}  // namespace nibble::cpu
