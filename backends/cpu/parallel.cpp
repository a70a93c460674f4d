#include "backends/cpu/parallel.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/partitioner.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "backends/cpu/thread_probe.h"
#include "nibble/error.h"

namespace nibble::cpu {
namespace {

using oneapi::tbb::global_control;

// TBB runs no more workers than the machine has cores, and prints a warning when an arena asks for
// more, unless a control allows so many. The control holds for the whole process, so it lives no
// longer than the arenas that need it.
struct Record {
  std::mutex mutex;
  std::vector<int> living;  // threads of every arena
  int started = 0;          // workers that TBB has
  std::unique_ptr<global_control> control;

  int largest() const {
    int most = oneapi::tbb::info::default_concurrency();
    for (const int threads : living) most = std::max(most, threads);
    return most;
  }
  // What all arenas may have at work at once.
  int workers() const {
    const int sum = std::accumulate(living.begin(), living.end(), 0);
    return std::min(sum - static_cast<int>(living.size()), largest() - 1);
  }
  void allow() {
    const int most = largest();
    std::unique_ptr<global_control> next;
    if (most > oneapi::tbb::info::default_concurrency()) {
      next = std::make_unique<global_control>(global_control::max_allowed_parallelism,
                                              static_cast<std::size_t>(most));
    }
    control = std::move(next);  // the smallest of all controls holds, so the old one goes
  }
};

Record& record() {
  static Record r;
  return r;
}

// TBB starts its threads when work comes, and ends the process when the system refuses one: so all
// of them are started here, where enough of them are known to be allowed. They wait for each other;
// the deadline is for a program whose own controls leave TBB fewer.
void start(int workers) {
  const auto allowed = global_control::active_value(global_control::max_allowed_parallelism);
  workers = std::min(workers, static_cast<int>(allowed) - 1);
  if (workers < 1) return;
  std::mutex mutex;
  std::condition_variable all_here;
  int here = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  oneapi::tbb::task_arena arena(workers + 1);
  arena.execute([&] {
    oneapi::tbb::parallel_for(
        oneapi::tbb::blocked_range<int>(0, workers + 1),
        [&](const oneapi::tbb::blocked_range<int>&) {
          std::unique_lock lock(mutex);
          if (++here == workers + 1) all_here.notify_all();
          all_here.wait_until(lock, deadline, [&] { return here > workers; });
        },
        oneapi::tbb::simple_partitioner());
  });
}

}  // namespace

int most_threads() {
  return std::max(256, 2 * oneapi::tbb::info::default_concurrency());
}

ThreadShare::ThreadShare(int threads) {
  if (threads < 0 || threads > most_threads()) {
    throw Error(ErrorCode::invalid_argument, "[cpu] threads: expected 0 (all) to " +
                                                 std::to_string(most_threads()) + ", found " +
                                                 std::to_string(threads));
  }
  threads_ = threads > 0 ? threads : oneapi::tbb::info::default_concurrency();
  Record& r = record();
  const std::lock_guard lock(r.mutex);
  r.living.push_back(threads_);
  try {
    const int more = r.workers() - r.started;
    const int found = more > 0 ? threads_that_start(more) : 0;
    if (found < more) {
      if (threads > 0) {
        throw Error(ErrorCode::out_of_memory,
                    "[cpu] threads: expected to start " + std::to_string(threads) +
                        " threads, found that the system allows " +
                        std::to_string(std::max(1, threads - (more - found))) +
                        " (limits on processes or memory): lower threads");
      }
      // Nobody asked for a number: what the system gives is all there is.
      r.living.back() = threads_ = std::max(1, threads_ - (more - found));
    }
    r.allow();
  } catch (...) {
    r.living.pop_back();
    throw;
  }
}

void ThreadShare::start_workers() const {
  Record& r = record();
  const std::lock_guard lock(r.mutex);
  const int wanted = r.workers();
  if (wanted <= r.started) return;
  start(wanted);
  r.started = wanted;
}

ThreadShare::~ThreadShare() {
  Record& r = record();
  const std::lock_guard lock(r.mutex);
  r.living.erase(std::find(r.living.begin(), r.living.end(), threads_));
  r.allow();
  if (r.living.empty()) r.started = 0;  // TBB may end its threads now
}

}  // namespace nibble::cpu
