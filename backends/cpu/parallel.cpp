#include "backends/cpu/parallel.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>

#include <memory>
#include <mutex>

namespace nibble::cpu {

void allow_threads(int threads) {
  using oneapi::tbb::global_control;
  static std::mutex mutex;
  static std::unique_ptr<global_control> control;
  static int allowed = oneapi::tbb::info::default_concurrency();
  const std::lock_guard lock(mutex);
  if (threads <= allowed) return;
  allowed = threads;
  // the smallest of all controls holds, so the old one goes
  control.reset();
  control = std::make_unique<global_control>(global_control::max_allowed_parallelism,
                                             static_cast<std::size_t>(threads));
}

}  // namespace nibble::cpu
