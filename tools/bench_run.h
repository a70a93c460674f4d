// bench_run.h: prefill and decode measured on a loaded model.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nibble/model.h"
#include "tools/trace_summary.h"

namespace nibble::tool {

struct BenchCase {
  enum class Kind { prefill, decode } kind = Kind::prefill;
  std::int64_t tokens = 0;  // prompt rows, or decode steps
  std::int64_t depth = 0;   // tokens held before
  int batch = 1;            // sequences at once

  std::string name() const;        // "pp512", "tg128 @ d1024"
  std::int64_t positions() const;  // of one sequence
};

struct BenchResult {
  BenchCase what;
  std::vector<double> samples;     // tokens per second, all sequences together
  double mean = 0, deviation = 0;  // of the samples (n - 1)
  std::optional<TraceSummary> traced;  // of one more run
};

// How often a row is measured: `most` times, but no run begins once `seconds` have passed. One always
// does.
struct Repetitions {
  int most = 5;
  double seconds = 0;
};

// One warm-up, then the repetitions; with `trace`, one more run that is not measured but traced: of decode rows the steps
// that would be timed, without what fills their depth. `alive` is asked between steps and repetitions; when it says no,
// Interrupted is thrown.
BenchResult run_case(const Model& model, const BenchCase& what, const Repetitions& repetitions,
                     const std::function<bool()>& alive, Trace* trace = nullptr);

}  // namespace nibble::tool
