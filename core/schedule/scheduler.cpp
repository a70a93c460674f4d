#include "core/schedule/scheduler.h"

#include <algorithm>

#include "core/state/state_layout.h"

namespace nibble {

void schedule(std::span<const SequenceView> sequences, const ScheduleLimits& limits,
              std::vector<ScheduledRange>& out) {
  out.clear();
  std::int64_t left = limits.step_tokens;
  for (const SequenceView& s : sequences) {
    if (!s.decode || left == 0) continue;
    out.push_back({s.id, Section::decode, 1, true});
    --left;
  }
  for (const SequenceView& s : sequences) {
    if (s.decode || left == 0) continue;
    std::int64_t rows = s.waiting;
    if (rows > left) rows = (s.position + left) / kPageTokens * kPageTokens - s.position;
    if (rows <= 0) continue;
    out.push_back({s.id, Section::prefill, rows, rows == s.waiting});
    left -= rows;
  }
}

}  // namespace nibble
