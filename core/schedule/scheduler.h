// scheduler.h: which rows run in the next step. A pure function, so that its promises can be tested.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ops/ops.h"

namespace nibble {

// A sequence that has rows to run.
struct SequenceView {
  std::int32_t id = 0;
  std::int64_t position = 0;  // of its first waiting token
  std::int64_t waiting = 0;   // tokens that have not run, at least 1
  bool decode = false;        // the one waiting token was sampled: it runs in the decode section
};

struct ScheduledRange {
  std::int32_t id = 0;
  Section section = Section::prefill;
  std::int64_t rows = 0;
  bool completes = false;  // the last waiting token is among them: its logits are wanted
};

struct ScheduleLimits {
  std::int64_t step_tokens = 2048;  // rows of a step
};

// Ranges in section order. Every decode is served in every step. Prompts share what is left in the
// order given; a prompt is cut only at a multiple of kPageTokens from its sequence's start, so that
// the cuts change no bits. Some sequence advances whenever step_tokens >= decodes + kPageTokens.
void schedule(std::span<const SequenceView> sequences, const ScheduleLimits& limits,
              std::vector<ScheduledRange>& out);

}  // namespace nibble
