// parallel.h: oneTBB across rows, never inside a sum.
//
// Each backend has an arena of its own with as many slots as threads were asked for, the caller's among
// them, whatever arena of the program it is called from; all arenas of the process draw on TBB's one pool of
// workers, so nothing is run by more threads than that pool has. Arenas are bound to no memory node.
#pragma once

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <cstdint>

#include "core/base/float_env.h"

namespace nibble::cpu {

// The most that a caller may ask for: TBB promises to run 256 workers, or twice the processors.
int most_threads();

// The right of one arena to its threads. Throws Error(invalid_argument) for a number out of range,
// Error(out_of_memory) when the system does not allow so many threads; then nothing is left behind.
class ThreadShare {
 public:
  // 0: all that the machine (or the caller's affinity mask) offers and the system allows.
  explicit ThreadShare(int threads);
  ~ThreadShare();
  ThreadShare(const ThreadShare&) = delete;
  ThreadShare& operator=(const ThreadShare&) = delete;

  int threads() const { return threads_; }
  // Afterwards no work needs a new thread. Call while an arena keeps TBB alive.
  void start_workers() const;

 private:
  int threads_;
};

class Parallel {
 public:
  explicit Parallel(int threads)
      : share_(threads), threads_(share_.threads()), arena_(share_.threads()) {
    arena_.initialize();
    share_.start_workers();
  }
  int threads() const { return threads_; }

  // body(begin, end) over disjoint ranges of [0, n) that cover it; which ranges is left open, so
  // body must give the same bits whatever they are. `grain`: the least worth handing to a thread.
  template <class Body>
  void operator()(std::int64_t n, std::int64_t grain, const Body& body) {
    if (n <= 0) return;
    if (threads_ == 1 || n <= grain) {
      const FloatEnv env;
      body(std::int64_t{0}, n);
      return;
    }
    arena_.execute([&] {
      oneapi::tbb::parallel_for(
          oneapi::tbb::blocked_range<std::int64_t>(0, n, static_cast<std::size_t>(std::max<std::int64_t>(grain, 1))),
          [&](const oneapi::tbb::blocked_range<std::int64_t>& r) {
            const FloatEnv env;
            body(r.begin(), r.end());
          });
    });
  }

 private:
  ThreadShare share_;
  int threads_;
  oneapi::tbb::task_arena arena_;
};

}  // namespace nibble::cpu
