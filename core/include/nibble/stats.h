// stats.h: counters of what a model's steps did. Tests assert on them, `--stats` prints them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nibble/export.h"

namespace nibble {

struct StepStats {
  std::uint64_t steps = 0;
  std::uint64_t launches = 0;               // ops executed (CPU) or kernels and graph launches (GPU)
  std::uint64_t host_to_device_bytes = 0;   // batch descriptions; 0 on the CPU
  std::uint64_t device_to_host_bytes = 0;
  std::uint64_t collectives = 0;
  std::uint64_t allocations = 0;            // of device memory inside steps: 0 by design
  std::uint64_t last_launches = 0;          // of the latest step
  std::uint64_t prefill_tokens = 0, decode_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0;  // no moment counts twice, though steps overlap on the host
  std::uint64_t ahead_steps = 0;      // started before the tokens of the step before were known
  std::uint64_t taken_back_rows = 0;  // that ran behind the end of their answer
  std::vector<std::pair<std::string, std::string>> kernels;  // op kind -> implementation that served it

  // One JSON object; its keys are the names above.
  NIBBLE_API std::string json() const;
};

}  // namespace nibble
