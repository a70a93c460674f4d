// Sessions, streams and marks through the C ABI, and handles that are freed early.
#include <cmath>

#include "fixture.h"

namespace nibble::test {
namespace {

constexpr auto kPrompt = "The capital of France is";
constexpr auto kGate = " Paris.\nThe capital of Germany is Berlin.";

TEST_F(CApi, StreamsTheGateText) {
  SessionHandle s = session();
  const std::vector<std::int32_t> prompt = ids(kPrompt);
  StreamHandle stream = generate(s.get(), prompt, 32);
  EXPECT_EQ(nibble_stream_stop_reason(stream.get()), NIBBLE_STOP_NONE);
  EXPECT_TRUE(read(stream.get()).starts_with(kGate));
  EXPECT_EQ(nibble_stream_stop_reason(stream.get()), NIBBLE_STOP_LENGTH);
  std::int64_t fed = 0, made = 0;
  ASSERT_EQ(nibble_stream_counts(stream.get(), &fed, &made), NIBBLE_OK);
  EXPECT_EQ(fed, static_cast<std::int64_t>(prompt.size()));
  EXPECT_EQ(made, 32);
  EXPECT_EQ(nibble_stream_next(stream.get(), nullptr, nullptr, nullptr), NIBBLE_END);
  EXPECT_EQ(tokens(s.get()).size(), prompt.size() + 32);
  std::int64_t room = 0;
  ASSERT_EQ(nibble_session_room(s.get(), &room), NIBBLE_OK);
  EXPECT_EQ(room, 512 - static_cast<std::int64_t>(prompt.size()) - 32);
}

TEST_F(CApi, StopsAtATextThatIsNotPartOfTheAnswer) {
  SessionHandle s = session();
  const std::vector<std::int32_t> prompt = ids(kPrompt);
  const char* stops[] = {"Spain", "Germany"};
  nibble_sampling how;
  nibble_sampling_init(&how, sizeof how);
  how.stop = stops;
  how.stop_count = 2;
  nibble_stream* raw = nullptr;
  ASSERT_EQ(nibble_generate(s.get(), prompt.data(), prompt.size(), &how, &raw), NIBBLE_OK);
  StreamHandle stream(raw);
  EXPECT_EQ(read(stream.get()), " Paris.\nThe capital of ");
  EXPECT_EQ(nibble_stream_stop_reason(stream.get()), NIBBLE_STOP_TEXT);
}

TEST_F(CApi, StopsAtATokenOfTheCallers) {
  SessionHandle s = session();
  const std::vector<std::int32_t> prompt = ids(kPrompt);
  StreamHandle first = generate(s.get(), prompt, 2);
  read(first.get());
  first.reset();
  const std::int32_t stop = tokens(s.get()).back();
  ASSERT_EQ(nibble_session_clear(s.get()), NIBBLE_OK);
  EXPECT_TRUE(tokens(s.get()).empty());
  nibble_sampling how;
  nibble_sampling_init(&how, sizeof how);
  how.stop_tokens = &stop;
  how.stop_token_count = 1;
  nibble_stream* raw = nullptr;
  ASSERT_EQ(nibble_generate(s.get(), prompt.data(), prompt.size(), &how, &raw), NIBBLE_OK);
  StreamHandle stream(raw);
  read(stream.get());
  EXPECT_EQ(nibble_stream_stop_reason(stream.get()), NIBBLE_STOP_TOKEN);
  EXPECT_EQ(tokens(s.get()).size(), prompt.size() + 2);
}

TEST_F(CApi, BadSamplingIsRefusedAndTheSessionStaysUsable) {
  SessionHandle s = session();
  const std::vector<std::int32_t> prompt = ids(kPrompt);
  const auto status = [&](auto change) {
    nibble_sampling how;
    nibble_sampling_init(&how, sizeof how);
    change(how);
    nibble_stream* stream = nullptr;
    const nibble_status r = nibble_generate(s.get(), prompt.data(), prompt.size(), &how, &stream);
    EXPECT_EQ(stream, nullptr);
    nibble_stream_free(stream);
    return r;
  };
  EXPECT_EQ(status([](auto& h) { h.temperature = -1; }), NIBBLE_INVALID_ARGUMENT);
  EXPECT_EQ(status([](auto& h) { h.top_p = NAN; }), NIBBLE_INVALID_ARGUMENT);
  EXPECT_EQ(status([](auto& h) { h.stop_count = 1; }), NIBBLE_INVALID_ARGUMENT);
  const char* const no_text = nullptr;
  EXPECT_EQ(status([&](auto& h) { h.stop = &no_text, h.stop_count = 1; }), NIBBLE_INVALID_ARGUMENT);
  EXPECT_EQ(status([](auto& h) { h.struct_size = 3; }), NIBBLE_INVALID_ARGUMENT);
  EXPECT_TRUE(tokens(s.get()).empty());
  EXPECT_TRUE(read(generate(s.get(), prompt, 32).get()).starts_with(kGate));
}

TEST_F(CApi, PromptsThatDoNotFitOrDoNotExistAreRefused) {
  SessionHandle s = session();
  nibble_stream* stream = nullptr;
  const std::vector<std::int32_t> long_prompt(600, 5);
  EXPECT_EQ(nibble_generate(s.get(), long_prompt.data(), long_prompt.size(), nullptr, &stream),
            NIBBLE_CONTEXT_FULL);
  EXPECT_NE(std::string(nibble_last_error()).find("600"), std::string::npos);
  const std::int32_t wrong = 4096;
  EXPECT_EQ(nibble_generate(s.get(), &wrong, 1, nullptr, &stream), NIBBLE_INVALID_ARGUMENT);
  EXPECT_EQ(nibble_generate(s.get(), nullptr, 0, nullptr, &stream), NIBBLE_INVALID_ARGUMENT);
  EXPECT_EQ(stream, nullptr);
}

TEST_F(CApi, AModelFreedEarlyLivesOnInItsSession) {
  SessionHandle s = session();
  const std::vector<std::int32_t> prompt = ids(kPrompt);
  model_.reset();
  StreamHandle stream = generate(s.get(), prompt, 32);
  read(stream.get(), 3);
  EXPECT_EQ(tokens(s.get()).size(), prompt.size() + 3);
}

TEST_F(CApi, ASessionFreedEarlyLivesOnInItsStream) {
  const std::vector<std::int32_t> prompt = ids(kPrompt);
  SessionHandle s = session();
  StreamHandle stream = generate(s.get(), prompt, 32);
  std::string text = read(stream.get(), 2);
  model_.reset();
  s.reset();
  text += read(stream.get());
  EXPECT_TRUE(text.starts_with(kGate)) << text;
}

TEST_F(CApi, AStreamFreedEarlyStopsTheAnswerThere) {
  const std::vector<std::int32_t> prompt = ids(kPrompt);
  SessionHandle a = session(), b = session();
  StreamHandle dropped = generate(a.get(), prompt, 32);
  read(dropped.get(), 5);
  dropped.reset();
  const std::vector<std::int32_t> kept = tokens(a.get());
  EXPECT_EQ(kept.size(), prompt.size() + 5);
  // Going on is as if the answer had ended there by max_new_tokens.
  read(generate(b.get(), prompt, 5).get());
  EXPECT_EQ(tokens(b.get()), kept);
  EXPECT_EQ(read(generate(a.get(), {}, 12).get()), read(generate(b.get(), {}, 12).get()));
}

TEST_F(CApi, OneStreamOfASessionAtATime) {
  SessionHandle s = session();
  StreamHandle running = generate(s.get(), ids(kPrompt), 32);
  read(running.get(), 1);
  const std::int32_t id = 5;
  nibble_stream* second = nullptr;
  EXPECT_EQ(nibble_generate(s.get(), &id, 1, nullptr, &second), NIBBLE_INVALID_ARGUMENT);
  EXPECT_EQ(second, nullptr);
  EXPECT_TRUE(read(running.get()).size() > 10);
}

TEST_F(CApi, SessionsAreLimitedAndComeBack) {
  SessionHandle a = session(), b = session();
  nibble_session* c = nullptr;
  EXPECT_EQ(nibble_session_create(model_.get(), &c), NIBBLE_OUT_OF_MEMORY);
  EXPECT_EQ(c, nullptr);
  b.reset();
  ASSERT_EQ(nibble_session_create(model_.get(), &c), NIBBLE_OK) << nibble_last_error();
  nibble_session_free(c);
}

TEST_F(CApi, AMarkBringsTheSessionBack) {
  SessionHandle s = session();
  read(generate(s.get(), ids(kPrompt), 8).get());
  nibble_mark* raw = nullptr;
  ASSERT_EQ(nibble_mark_create(s.get(), &raw), NIBBLE_OK) << nibble_last_error();
  MarkHandle mark(raw);
  const std::vector<std::int32_t> held = tokens(s.get());
  std::int64_t at = 0;
  std::uint64_t bytes = 0;
  ASSERT_EQ(nibble_mark_tokens(mark.get(), &at), NIBBLE_OK);
  ASSERT_EQ(nibble_mark_bytes(mark.get(), &bytes), NIBBLE_OK);
  EXPECT_EQ(at, static_cast<std::int64_t>(held.size()));
  EXPECT_GT(bytes, 0u);
  const std::string first = read(generate(s.get(), ids(" And then"), 10).get());
  ASSERT_EQ(nibble_session_rewind(s.get(), mark.get()), NIBBLE_OK) << nibble_last_error();
  EXPECT_EQ(tokens(s.get()), held);
  EXPECT_EQ(read(generate(s.get(), ids(" And then"), 10).get()), first);

  SessionHandle other = session();
  EXPECT_EQ(nibble_session_rewind(other.get(), mark.get()), NIBBLE_INVALID_ARGUMENT);
  s.reset();
  model_.reset();
  EXPECT_EQ(nibble_mark_tokens(mark.get(), &at), NIBBLE_OK);  // a mark outlives what it marked
}

TEST_F(CApi, ScoreGivesLogProbabilities) {
  SessionHandle s = session();
  const std::vector<std::int32_t> text = ids("The capital of France is Paris.\n");
  std::vector<double> values(text.size() - 1, 7.0);
  std::size_t n = 0;
  EXPECT_EQ(nibble_score(s.get(), text.data(), text.size(), values.data(), values.size() - 1, &n),
            NIBBLE_BUFFER_TOO_SMALL);
  EXPECT_EQ(n, text.size() - 1);
  EXPECT_TRUE(tokens(s.get()).empty()) << "a score that does not fit runs nothing";
  ASSERT_EQ(nibble_score(s.get(), text.data(), text.size(), values.data(), values.size(), &n),
            NIBBLE_OK)
      << nibble_last_error();
  EXPECT_EQ(n, text.size() - 1);
  for (const double v : values) {
    EXPECT_TRUE(std::isfinite(v));
    EXPECT_LE(v, 0.0);
  }
  EXPECT_GT(values.back(), -1.0) << "the end of a line after \"Paris.\" is no surprise";
  EXPECT_EQ(tokens(s.get()), text);
  // With a first token held, every token has a value.
  double more = 7.0;
  ASSERT_EQ(nibble_score(s.get(), text.data(), 1, &more, 1, &n), NIBBLE_OK);
  EXPECT_EQ(n, 1u);
  EXPECT_LE(more, 0.0);
}

}  // namespace
}  // namespace nibble::test
