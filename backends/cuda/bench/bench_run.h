// bench_run.h: what the benches of ops share: a card, a timer that asks between batches whether to go on, and a result
// that is complete or says that it is not.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "backends/backend.h"
#include "backends/cuda/arch_path.h"
#include "backends/cuda/bench/launch_timer.h"
#include "backends/cuda/check.h"
#include "backends/cuda/device_info.h"
#include "nibble/error.h"

namespace nibble::cuda {

inline const BackendOptions& refuse_mirror(const BackendOptions& options) {
  if (options.mirror.empty()) return options;
  throw Error(ErrorCode::no_device,
              "[cuda] mirror: only the CPU mirrors a profile, found \"" + options.mirror + "\"");
}

template <class Bench, class Options>
class BenchRun {
 protected:
  // `rows`: of the result, for progress. `needs_bf16`: what is measured on rows of bf16 only; null: any will do. Throws
  // Error(no_device) for a mirror, Error(unsupported) for a profile with other rows.
  BenchRun(const BackendOptions& options, const Options& how, std::size_t rows, const char* needs_bf16)
      : how_(how),
        card_(use_card(refuse_mirror(options).index)),
        path_(arch_path_from(options.arch_path, card_.major, card_.minor)),
        timer_(how.repetitions, [this] { go_on(); }),
        expected_rows_(rows) {
    if (needs_bf16 != nullptr && operand_of(path_) == DType::f16) {
      throw Error(ErrorCode::unsupported, std::string("[cuda] bench ops: ") + needs_bf16 +
                                              ": expected rows of bf16 (sm90, sm120), found sm70");
    }
    int l2 = 0;
    check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, options.index), "asking for the L2's size");
    l2_bytes_ = static_cast<std::uint64_t>(l2);
    result_.device = card_.name;
    result_.kernels = architecture_of(card_.major, card_.minor);
    result_.profile = arch_path_name(path_);
  }
  ~BenchRun() = default;

  // What measure() has put into result_, all of it or until on_progress ended it.
  template <class F>
  Bench finish(F measure) {
    try {
      measure();
    } catch (const Stopped&) {
      result_.complete = false;
    }
    return std::move(result_);
  }
  void at(std::string what) {
    what_ = std::move(what);
    go_on();
  }
  void go_on() const {
    const double part = static_cast<double>(result_.rows.size()) / static_cast<double>(expected_rows_);
    if (how_.on_progress && !how_.on_progress(what_, std::min(part, 1.0))) throw Stopped{};
  }

  const Options& how_;
  CardInfo card_;
  ArchPath path_;
  LaunchTimer timer_;
  std::uint64_t l2_bytes_ = 0;
  Bench result_;
  std::string what_;  // is being measured

 private:
  struct Stopped {};

  std::size_t expected_rows_;
};

}  // namespace nibble::cuda
