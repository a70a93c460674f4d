// bench_step.h: a step of alike sequences, as ops that touch their state read it.
#pragma once

#include <cstdint>

#include "backends/cuda/bench/launch_timer.h"
#include "backends/cuda/memory.h"
#include "core/ops/ops.h"

namespace nibble::cuda {

// One range a sequence, in one section.
struct BenchStep {
  std::int32_t sequences = 1;
  std::int64_t rows = 1;  // of each
  Section section = Section::prefill;
  std::int64_t position = 0;   // of each one's first row
  std::int32_t keep = 0;       // records of the step before
  std::int64_t pages_each = 0; // sequence i has pages i * pages_each and on
};

// Begins with its StepView. Sent when it returns.
Block send_step(const LaunchTimer& timer, const BenchStep& step);
// A class of exactly this step, sent as `view`.
Launch launch_of(const LaunchTimer& timer, const BenchStep& step, const Block& view, int multiprocessors);

}  // namespace nibble::cuda
