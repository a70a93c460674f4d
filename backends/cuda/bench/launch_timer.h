// launch_timer.h: how long one launch takes among many that follow one another.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "backends/cuda/launch.h"
#include "nibble/op_bench.h"

namespace nibble::cuda {

// Enqueues a launch on the timer's stream; launches take copies of their data in turn.
using LaunchCopy = std::function<void(int copy)>;

class LaunchTimer {
 public:
  // `before_batch` may throw to end a measurement.
  LaunchTimer(int repetitions, std::function<void()> before_batch);
  ~LaunchTimer();
  LaunchTimer(const LaunchTimer&) = delete;
  LaunchTimer& operator=(const LaunchTimer&) = delete;

  cudaStream_t stream() const { return stream_; }
  // A class of `rows` rows and a step that has them all, written to `step` (sizeof(StepView) bytes on the card).
  Launch launch(std::int64_t rows, std::byte* step, int multiprocessors) const;
  // Warms up, then times batches of at least 5 launches and about 2 ms, whole rounds of the copies. Short
  // launches, and all with copies, run as a captured graph: else the host's work to launch would count.
  LaunchTimes measure(int copies, const LaunchCopy& launch);

 private:
  double seconds_of(const std::function<void()>& work);

  int repetitions_;
  std::function<void()> before_batch_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace nibble::cuda
