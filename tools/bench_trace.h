// bench_trace.h: what a traced run of bench's rows says, and the file it leaves.
#pragma once

#include <string>
#include <vector>

#include "nibble/trace.h"
#include "tools/bench_run.h"

namespace nibble::tool {

struct TracedRow {
  BenchCase what;
  Trace trace;  // of one run
  TraceSummary summary;
};

// Tables: busy share, stalls, copies; the share of the busy time by class of op; then by kernel (CUDA) or kind of op
// (CPU), of the sum of their times.
std::string trace_text(const std::vector<TracedRow>& rows);

// Throws Failure when the file cannot be written; leaves one that is there as it is.
void expect_writable(const std::string& path);

// All rows, one behind the other, in Chrome's format. Throws Failure when the file cannot be written.
void write_trace(const std::string& path, const std::vector<TracedRow>& rows);

}  // namespace nibble::tool
