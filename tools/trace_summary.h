// trace_summary.h: what a trace says of the steps in it, in a few numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "nibble/trace.h"

namespace nibble::tool {

struct TraceSummary {
  std::size_t steps = 0;
  double seconds = 0;           // from the first step's start to the last one's end; what follows is of that time
  double busy_share = 0;        // in which kernels (on the CPU: ops) ran
  double kernels_per_step = 0;
  double longest_stall_seconds = 0;  // in which none ran
  std::size_t stalls = 0;            // of over 2 ms
  std::uint64_t to_device_bytes = 0, to_host_bytes = 0;
  std::vector<std::pair<std::string_view, double>> class_shares;  // of the busy time, by op_classes()
};

// `steps`: Trace::of_steps().
TraceSummary summary_of(const Trace& steps);
// As many leading steps as have rows of prompts.
std::size_t prompt_steps(const Trace& trace);
// A class's name as a key: "delta_net".
std::string class_key(std::string_view name);
Json::Object summary_json(const TraceSummary& s);

}  // namespace nibble::tool
