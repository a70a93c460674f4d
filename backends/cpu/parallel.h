// parallel.h: oneTBB across rows, never inside a sum.
#pragma once

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <cstdint>

#include "backends/cpu/float_env.h"

namespace nibble::cpu {

// TBB runs no more workers than the machine has cores, and prints a warning when an arena asks for
// more, unless it is told that so many are meant.
void allow_threads(int threads);

class Parallel {
 public:
  // threads 0: all that the machine (or the caller's affinity mask) offers.
  explicit Parallel(int threads)
      : arena_(threads > 0 ? threads : oneapi::tbb::task_arena::automatic), threads_(threads) {
    allow_threads(threads);
    arena_.initialize();
  }
  int threads() const { return threads_ > 0 ? threads_ : arena_.max_concurrency(); }

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
  oneapi::tbb::task_arena arena_;
  int threads_;
};

}  // namespace nibble::cpu
