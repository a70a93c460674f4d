// sequence.h: one sequence as the engine keeps it, and the answer that runs on it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
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

// Where the reader of an answer is. It says that it waits before it takes the engine's lock, and takes that back under the
// lock only. It belongs to the reader, so a sequence that is assigned keeps its own.
class Reader {
 public:
  enum class At {
    away,
    waiting,  // whatever token comes next is taken
    served,   // has its token of this round, and waits for those of other answers
  };
  Reader() = default;
  Reader(const Reader&) {}
  Reader& operator=(const Reader&) { return *this; }
  void set(At at) { at_ = at; }
  bool waits() const { return at_ == At::waiting; }
  bool served() const { return at_ == At::served; }

 private:
  std::atomic<At> at_{At::away};
};

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
  // Made and not taken yet, oldest first. A token's own row runs when the token was taken, or is taken for certain by
  // the reader that waits: so one token at most is ahead of a reader that may leave, two of one that waits.
  struct Unread {
    std::int32_t token = -1;
    std::string text;
  };
  std::array<Unread, 2> unread;
  std::size_t unread_count = 0;
  Reader reader;
  std::string tail_text;  // held back when the answer ended

  // 0 while the step that samples the next token is in flight.
  std::int64_t waiting() const { return static_cast<std::int64_t>(tokens.size()) - fed; }
  // Its newest token may be run.
  bool ready() const { return running && !reader.served() && unread_count <= (reader.waits() ? 1u : 0u); }
  // That token was sampled and comes alone.
  bool decodes() const { return waiting() == 1 && last_sampled; }
};

}  // namespace nibble
