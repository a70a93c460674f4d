// sequence.h: one sequence as the engine keeps it, and the answer that runs on it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/engine/stop_text.h"
#include "core/text/decode_stream.h"
#include "core/text/tokenizer.h"
#include "nibble/options.h"
#include "nibble/session.h"

namespace nibble {

struct Sequence {
  std::int32_t slot = -1;
  std::uint64_t order = 0;  // of submission: first come, first served

  std::vector<std::int32_t> tokens;  // prompts and answers
  std::int64_t fed = 0;              // the first `fed` tokens are in the state
  std::int32_t keep = 0;             // records of the last step that count as accepted
  std::vector<std::int32_t> pages;
  bool last_sampled = false;         // tokens.back() came from the model
  // Tokens whose rows a shorter `keep` drops at the next step.
  std::vector<std::int32_t> taken_back;
  bool failed = false;               // a step threw while its rows ran

  // The answer.
  bool running = false;
  Sampling how;
  std::vector<std::int32_t> stop_tokens;
  std::int64_t prompt_tokens = 0, new_tokens = 0;
  StopReason reason = StopReason::none;
  std::optional<DecodeStream> decoder;
  StopText stop_text;
  // At most one token is made ahead of the reader.
  bool undelivered = false;
  std::int32_t next_token = -1;
  std::string next_text, tail_text;  // tail: held back when the answer ended

  std::int64_t waiting() const { return static_cast<std::int64_t>(tokens.size()) - fed; }
};

}  // namespace nibble
