// ahead_support.h: two models that differ in running ahead, and what has to be the same of them.
#pragma once

#include "tests/engine/support.h"

namespace nibble::test {

inline Model load_ahead(bool ahead, LoadOptions how = options()) {
  how.run_ahead = ahead;
  return load(how, Device::cpu(1));
}

inline Sampling sampled(int n) {
  Sampling how = tokens(n);
  how.temperature = 1.5f;
  how.top_p = 0.95f;
  how.repetition_penalty = 1.3f;
  how.seed = 77;
  return how;
}

// Two models that differ in this one thing, with a session each.
struct Twins {
  explicit Twins(const LoadOptions& how = options(), int sessions = 1)
      : ahead(load_ahead(true, how)), plain(load_ahead(false, how)) {
    for (int i = 0; i < sessions; ++i) {
      a.push_back(ahead.new_session());
      b.push_back(plain.new_session());
    }
  }
  Model ahead, plain;
  std::vector<Session> a, b;
};

struct Answer {
  std::vector<std::int32_t> tokens;
  std::string text;
  StopReason reason = StopReason::none;
  std::int64_t count = 0;
  bool operator==(const Answer&) const = default;
};

// At most `pieces` of the answer are read, then the stream is dropped.
inline Answer answer(Session& session, std::span<const std::int32_t> prompt, const Sampling& how, int pieces = 1 << 20) {
  auto stream = session.generate(prompt, how);
  Answer out;
  Piece piece;
  for (int i = 0; i < pieces && stream.next(piece); ++i) {
    if (piece.token >= 0) out.tokens.push_back(piece.token);
    out.text += piece.text;
  }
  out.reason = stream.stop_reason();
  out.count = stream.new_tokens();
  return out;
}

inline void expect_same(Session& a, Session& b, const std::string& what) {
  EXPECT_EQ(a.tokens(), b.tokens()) << what;
  EXPECT_EQ(a.room(), b.room()) << what;
  expect_same_state(state_of(a), state_of(b), what);
}

// They go on in the same way too: counts, a prompt, another answer.
inline void expect_same_future(Session& a, Session& b, const std::string& what) {
  expect_same(a, b, what);
  EXPECT_EQ(answer(a, {}, sampled(6)), answer(b, {}, sampled(6))) << what;
  const std::vector<std::int32_t> more = {500, 600, 700};
  EXPECT_EQ(answer(a, more, sampled(6)), answer(b, more, sampled(6))) << what;
  expect_same(a, b, what + ", later");
}

}  // namespace nibble::test
