#include "backends/cuda/bench/bench_step.h"

#include <cstring>
#include <numeric>
#include <vector>

#include "backends/cuda/bench/bench_data.h"
#include "backends/cuda/check.h"
#include "backends/cuda/step_view.h"

namespace nibble::cuda {

Block send_step(const LaunchTimer& timer, const BenchStep& of) {
  const auto ranges = static_cast<std::size_t>(of.sequences), rows = ranges * static_cast<std::size_t>(of.rows);
  const std::size_t pages = ranges * static_cast<std::size_t>(of.pages_each);
  const std::size_t rows_at = sizeof(StepView) + ranges * sizeof(RangeView), pages_at = rows_at + rows * sizeof(std::int32_t);
  std::vector<std::byte> host(pages_at + pages * sizeof(std::int32_t));
  Block block = allot(host.size(), "a step");
  StepView view{};
  view.rows = view.outputs = static_cast<std::int32_t>(rows);
  view.ranges = of.sequences;
  count_rows(view, 0);
  for (int s = 0; s < 4; ++s) {
    const bool behind = s > static_cast<int>(of.section);
    view.first_range[s] = behind ? of.sequences : 0;
    view.first_row[s] = behind ? view.rows : 0;
  }
  view.range = reinterpret_cast<const RangeView*>(block.data() + sizeof(StepView));
  view.range_of_row = reinterpret_cast<const std::int32_t*>(block.data() + rows_at);
  view.pages = reinterpret_cast<const std::int32_t*>(block.data() + pages_at);
  std::memcpy(host.data(), &view, sizeof view);
  for (std::int32_t i = 0; i < of.sequences; ++i) {
    RangeView r{};
    r.section = static_cast<std::int32_t>(of.section);
    r.slot = i;
    r.first_row = static_cast<std::int32_t>(i * of.rows);
    r.rows = static_cast<std::int32_t>(of.rows);
    r.position = of.position;
    r.keep = r.pending = of.keep;
    r.first_page = static_cast<std::int32_t>(i * of.pages_each);
    std::memcpy(host.data() + sizeof view + static_cast<std::size_t>(i) * sizeof r, &r, sizeof r);
    const std::vector<std::int32_t> of_rows(static_cast<std::size_t>(of.rows), i);
    std::memcpy(host.data() + rows_at + static_cast<std::size_t>(r.first_row) * sizeof(std::int32_t), of_rows.data(),
                of_rows.size() * sizeof(std::int32_t));
  }
  std::vector<std::int32_t> ids(pages);
  std::iota(ids.begin(), ids.end(), 0);
  if (pages > 0) std::memcpy(host.data() + pages_at, ids.data(), pages * sizeof(std::int32_t));
  check(cudaMemcpyAsync(block.data(), host.data(), host.size(), cudaMemcpyHostToDevice, timer.stream()), "sending a step");
  check(cudaStreamSynchronize(timer.stream()), "sending a step");
  return block;
}

Launch launch_of(const LaunchTimer& timer, const BenchStep& of, const Block& view, int multiprocessors) {
  Launch to;
  to.stream = timer.stream();
  to.step = reinterpret_cast<const StepView*>(view.data());
  to.max_rows = to.max_outputs = of.sequences * of.rows;
  to.max_ranges = of.sequences;
  to.multiprocessors = multiprocessors;
  return to;
}

}  // namespace nibble::cuda
