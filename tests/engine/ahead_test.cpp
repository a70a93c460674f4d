// Steps that run ahead of the host change no token, no text, no state and no refusal.
#include "tests/engine/ahead_support.h"

namespace nibble::test {
namespace {

TEST(Ahead, AnswersAreTheSameAndNoStepIsWasted) {
  for (const int n : {0, 1, 2, 3, 40}) {
    for (const Sampling& how : {tokens(n), sampled(n)}) {
      Twins t;
      const std::string what = std::to_string(n) + " tokens";
      const auto prompt = long_prompt(100);
      EXPECT_EQ(answer(t.a[0], prompt, how), answer(t.b[0], prompt, how)) << what;
      // The first token is the prompt's, nothing follows the last.
      EXPECT_EQ(t.ahead.stats().ahead_steps, static_cast<std::uint64_t>(std::max(0, n - 2))) << what;
      EXPECT_EQ(t.plain.stats().ahead_steps, 0u);
      EXPECT_EQ(t.ahead.stats().taken_back_rows, 0u) << what;
      EXPECT_EQ(t.ahead.stats().steps, t.plain.stats().steps) << what;
      expect_same_future(t.a[0], t.b[0], what);
    }
  }
}

TEST(Ahead, AStopTokenTakesTheRowBehindItBack) {
  Twins t;
  const auto prompt = ids_of("capital");
  const auto plain = answer(t.b[0], prompt, sampled(12)).tokens;
  for (std::size_t k = 0; k < plain.size(); ++k) {
    Sampling how = sampled(12);
    how.stop_tokens = {plain[k]};
    t.a[0].clear();
    t.b[0].clear();
    const std::string what = "stop token " + std::to_string(k);
    const std::uint64_t before = t.ahead.stats().taken_back_rows;
    const Answer a = answer(t.a[0], prompt, how);
    EXPECT_EQ(a, answer(t.b[0], prompt, how)) << what;
    EXPECT_EQ(a.reason, StopReason::stop_token);
    // Neither the prompt's step nor that of the last token has one behind it.
    const std::size_t at = static_cast<std::size_t>(std::find(plain.begin(), plain.end(), plain[k]) - plain.begin());
    const bool behind = at > 0 && at + 1 < plain.size();
    EXPECT_EQ(t.ahead.stats().taken_back_rows - before, behind ? 1u : 0u) << what;
    expect_same_future(t.a[0], t.b[0], what);
  }
  EXPECT_GT(t.ahead.stats().taken_back_rows, 5u);
}

TEST(Ahead, AStopTextTakesTheRowBehindItBack) {
  Twins t;
  for (const char* stop : {" Paris", ".", "The", "Germ", "Berl", "\nThe capital of S"}) {
    Sampling how = tokens(40);
    how.stop = {stop, "zzz"};
    t.a[0].clear();
    t.b[0].clear();
    const Answer a = answer(t.a[0], ids_of("capital"), how);
    EXPECT_EQ(a, answer(t.b[0], ids_of("capital"), how)) << stop;
    EXPECT_EQ(a.reason, StopReason::stop_text) << stop << ": " << a.text;
    expect_same_future(t.a[0], t.b[0], stop);
  }
  EXPECT_GT(t.ahead.stats().taken_back_rows, 3u);
}

TEST(Ahead, ADroppedStreamTakesTheRowBehindItBack) {
  for (int pieces = 0; pieces <= 8; ++pieces) {
    Twins t;
    const std::string what = "dropped after " + std::to_string(pieces);
    EXPECT_EQ(answer(t.a[0], ids_of("capital"), sampled(8), pieces), answer(t.b[0], ids_of("capital"), sampled(8), pieces))
        << what;
    EXPECT_EQ(t.ahead.stats().taken_back_rows, pieces > 1 && pieces < 8 ? 1u : 0u) << what;
    expect_same_future(t.a[0], t.b[0], what);
  }
}

TEST(Ahead, EndsWhereTheContextEnds) {
  Twins t(options(1, 1024, 128));
  const Answer a = answer(t.a[0], ids_of("capital"), tokens(500));
  EXPECT_EQ(a, answer(t.b[0], ids_of("capital"), tokens(500)));
  EXPECT_EQ(a.reason, StopReason::context);
  EXPECT_EQ(t.a[0].room(), 0);
  EXPECT_EQ(t.ahead.stats().steps, t.plain.stats().steps);
  EXPECT_GT(t.ahead.stats().ahead_steps, 100u);
  expect_same(t.a[0], t.b[0], "full");
}

TEST(Ahead, APageForARowThatIsTakenBackGoesBack) {
  // Three pages: one is the other session's, one is free until the answer reaches position 64.
  for (int taken = 60; taken < 66; ++taken) {
    Twins t(options(2, 1024, 192), 2);
    std::vector<std::string> said;
    for (std::vector<Session>* s : {&t.a, &t.b}) {
      read_all((*s)[1].generate(ids_of("capital"), tokens(1)));
      auto stream = (*s)[0].generate(long_prompt(3), tokens(100));
      Piece piece;
      for (int i = 0; i < taken; ++i) ASSERT_TRUE(stream.next(piece));
      // Wants whatever is free while a row is ahead.
      said.push_back(message_of([&] { read_all((*s)[1].generate(long_prompt(60), tokens(3))); }));
      while (stream.next(piece)) {
      }
      said.push_back(std::to_string(stream.new_tokens()) + stop_reason_name(stream.stop_reason()));
    }
    EXPECT_EQ(said[0], said[2]) << taken;
    EXPECT_EQ(said[1], said[3]) << taken;
    for (int i = 0; i < 2; ++i) expect_same(t.a[i], t.b[i], std::to_string(taken) + " taken, session " + std::to_string(i));
  }
}

TEST(Ahead, AnObserverSeesEveryLaterStep) {
  Twins t;
  std::vector<std::size_t> shown;
  for (auto* side : {&t.a, &t.b}) {
    Model& model = side == &t.a ? t.ahead : t.plain;
    auto stream = (*side)[0].generate(ids_of("capital"), tokens(20));
    Piece piece;
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(stream.next(piece));
    std::size_t steps = 0;
    model.impl().engine->observe([&](const Op& op, auto, auto, auto) { steps += op.name == kLogits; });
    while (stream.next(piece)) {
    }
    model.impl().engine->observe({});
    shown.push_back(steps);
  }
  EXPECT_EQ(shown[0], 15u);
  EXPECT_EQ(shown[1], 15u);
  expect_same_future(t.a[0], t.b[0], "observed");
}

// A thread reads several answers, all at once or in turns.
TEST(Ahead, ReadersOfManyAnswers) {
  constexpr std::size_t kAnswers = 3;
  for (const bool stops : {false, true}) {
    Twins t(options(3), 3);
    std::vector<std::vector<std::string>> said(2);
    for (const bool side : {false, true}) {
      std::vector<Session>& sessions = side ? t.a : t.b;
      std::vector<TokenStream> streams;
      for (std::size_t i = 0; i < kAnswers; ++i) {
        Sampling how = i == 1 ? tokens(25) : sampled(20 + 10 * static_cast<int>(i));
        if (stops) how.stop = {"a", "it"};
        streams.push_back(sessions[i].generate(long_prompt(5 + 70 * i), how));
      }
      std::vector<Piece> pieces(kAnswers);
      for (int round = 0; round < 200; ++round) {
        if (round % 10 < 7) {
          TokenStream::next_of_each(streams, pieces);
        } else {
          for (std::size_t i = 0; i < kAnswers; ++i) {
            if (!streams[i].next(pieces[i])) pieces[i] = {};
          }
        }
        for (std::size_t i = 0; i < kAnswers; ++i) {
          said[side].push_back(std::to_string(pieces[i].token) + std::string(pieces[i].text) +
                               stop_reason_name(streams[i].stop_reason()));
        }
        if (round == 15) {
          { const TokenStream leaves = std::move(streams[0]); }
          streams[0] = sessions[0].generate(ids_of("capital"), sampled(20));
        }
      }
    }
    EXPECT_EQ(said[0], said[1]);
    EXPECT_GT(t.ahead.stats().ahead_steps, 10u);
    for (std::size_t i = 0; i < kAnswers; ++i) expect_same_future(t.a[i], t.b[i], "answer " + std::to_string(i));
  }
  std::vector<TokenStream> none;
  std::vector<Piece> one(1);
  EXPECT_NE(message_of([&] { TokenStream::next_of_each(none, one); }).find("a piece for each of 0 streams, found 1"),
            std::string::npos);
}

}  // namespace
}  // namespace nibble::test
