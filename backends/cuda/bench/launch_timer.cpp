#include "backends/cuda/bench/launch_timer.h"

#include <algorithm>
#include <cmath>

#include "backends/cuda/loaded.h"
#include "backends/launch_times.h"

namespace nibble::cuda {
namespace {

constexpr double kBatchSeconds = 2e-3, kShortSeconds = 50e-6;
constexpr int kLeastLaunches = 5, kMostLaunches = 2000;

GraphExec capture(cudaStream_t stream, const std::function<void()>& work) {
  // Relaxed: a library may load or allocate while it launches.
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capturing launches");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "capturing launches");
  cudaGraphExec_t exec = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "making a graph of launches");
  return GraphExec(exec);
}

}  // namespace

LaunchTimer::LaunchTimer(int repetitions, std::function<void()> before_batch)
    : repetitions_(repetitions), before_batch_(std::move(before_batch)) {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  check(cudaEventCreate(&begin_), "making an event");
  check(cudaEventCreate(&end_), "making an event");
}

LaunchTimer::~LaunchTimer() {
  cudaStreamSynchronize(stream_);
  if (begin_ != nullptr) cudaEventDestroy(begin_);
  if (end_ != nullptr) cudaEventDestroy(end_);
  cudaStreamDestroy(stream_);
}

double LaunchTimer::seconds_of(const std::function<void()>& work) {
  before_batch_();
  check(cudaEventRecord(begin_, stream_), "timing launches");
  work();
  check(cudaGetLastError(), "launching");
  check(cudaEventRecord(end_, stream_), "timing launches");
  check(cudaEventSynchronize(end_), "timing launches");
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin_, end_), "timing launches");
  return static_cast<double>(ms) * 1e-3;
}

LaunchTimes LaunchTimer::measure(int copies, const LaunchCopy& launch) {
  const auto launches = [&](int count) {
    for (int i = 0; i < count; ++i) launch(i % copies);
  };
  seconds_of([&] { launches(copies); });
  const int probe = std::max(copies, 2);
  const double each = seconds_of([&] { launches(probe); }) / probe;
  const int least = std::max(
      kLeastLaunches, static_cast<int>(std::min<double>(kMostLaunches, std::ceil(kBatchSeconds / each))));
  // Whole rounds, so that a batch begins with the copy whose use lies furthest back.
  const int count = (least + copies - 1) / copies * copies;

  GraphExec graph;
  if (copies > 1 || each < kShortSeconds) graph = capture(stream_, [&] { launches(count); });
  const auto batch = [&] {
    if (graph) {
      check(cudaGraphLaunch(graph.get(), stream_), "launching a graph");
    } else {
      launches(count);
    }
  };
  seconds_of(batch);
  std::vector<double> samples;
  for (int r = 0; r < repetitions_; ++r) samples.push_back(seconds_of(batch) / count);
  return times_of(std::move(samples));
}

Launch LaunchTimer::launch(std::int64_t rows, std::byte* step, int multiprocessors) const {
  StepView view{};
  view.rows = view.outputs = static_cast<std::int32_t>(rows);
  count_rows(view, 0);
  for (std::int32_t& first : view.first_row) first = view.rows;
  view.first_row[0] = 0;
  // On the launches' own stream: another one's copy may still be on its way when they begin.
  check(cudaMemcpyAsync(step, &view, sizeof view, cudaMemcpyHostToDevice, stream_), "sending a step");
  Launch to;
  to.stream = stream_;
  to.step = reinterpret_cast<const StepView*>(step);
  to.max_rows = to.max_outputs = rows;
  to.max_ranges = 1;
  to.multiprocessors = multiprocessors;
  return to;
}

}  // namespace nibble::cuda
