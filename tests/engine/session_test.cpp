// Stops, drops, marks: the state is always that of a run which ended exactly there.
#include <cfenv>
#include <optional>

#include "tests/engine/support.h"

namespace nibble::test {
namespace {

const std::vector<std::int32_t>& capital() {
  static const auto ids = Golden(data("golden/prompts.safetensors")).i32("capital.ids");
  return ids;
}

// Both sessions hold the same tokens and bytes, and go on in the same way.
void expect_same_future(Session& a, Session& b, const std::string& what) {
  EXPECT_EQ(a.tokens(), b.tokens()) << what;
  expect_same_state(state_of(a), state_of(b), what);
  Sampling how = tokens(8);
  how.repetition_penalty = 1.2f;  // reads the token counts
  EXPECT_EQ(read_all(a.generate({}, how)), read_all(b.generate({}, how))) << what;
  const std::vector<std::int32_t> more = {500, 600, 700};
  EXPECT_EQ(read_all(a.generate(more, how)), read_all(b.generate(more, how))) << what;
  expect_same_state(state_of(a), state_of(b), what + ", later");
}

TEST(Session, StopTextEndsAsIfTheRunHadEndedThere) {
  Model model = load(options(2));
  Session stopped = model.new_session(), counted = model.new_session();
  Sampling how = tokens(64);
  how.stop = {"Germ", "zzz"};
  std::string text;
  auto stream = stopped.generate(capital(), how);
  int count = 0;
  for (const Piece& p : stream) {
    text += p.text;
    count += p.token >= 0;
  }
  EXPECT_EQ(stream.stop_reason(), StopReason::stop_text);
  EXPECT_EQ(text, " Paris.\nThe capital of ");
  EXPECT_EQ(stream.new_tokens(), count);
  read_all(counted.generate(capital(), tokens(count)));
  expect_same_future(stopped, counted, "stop text");
}

TEST(Session, StopTokenEndsAsIfTheRunHadEndedThere) {
  Model model = load(options(2));
  Session stopped = model.new_session(), counted = model.new_session();
  const auto answer = read_all(counted.generate(capital(), tokens(9)));
  Sampling how = tokens(64);
  how.stop_tokens = {answer.back()};
  const auto until = std::find(answer.begin(), answer.end(), answer.back()) - answer.begin() + 1;
  auto stream = stopped.generate(capital(), how);
  int count = 0;
  for (const Piece& p : stream) count += p.token >= 0;
  EXPECT_EQ(stream.stop_reason(), StopReason::stop_token);
  EXPECT_EQ(count, until);
  counted.clear();
  read_all(counted.generate(capital(), tokens(count)));
  expect_same_future(stopped, counted, "stop token");
}

TEST(Session, ADroppedStreamEndsAtTheLastPieceTaken) {
  Model model = load(options(3));
  for (int taken = 1; taken <= 5; ++taken) {
    Session dropped = model.new_session(), other = model.new_session(), counted = model.new_session();
    {
      auto stream = dropped.generate(capital(), tokens(50));
      auto beside = other.generate(long_prompt(40), tokens(50));
      Piece piece;
      for (int i = 0; i < taken; ++i) {
        ASSERT_TRUE(stream.next(piece));
        ASSERT_TRUE(beside.next(piece));
      }
      // The neighbour's step makes one more token of ours, which nobody reads.
      ASSERT_TRUE(beside.next(piece));
    }
    read_all(counted.generate(capital(), tokens(taken)));
    expect_same_future(dropped, counted, "dropped after " + std::to_string(taken));
  }
}

TEST(Session, GoingOnEqualsNotHavingStopped) {
  Model model = load(options(2));
  Session parts = model.new_session(), whole = model.new_session();
  auto answer = read_all(parts.generate(capital(), tokens(5)));
  const auto rest = read_all(parts.generate({}, tokens(7)));
  answer.insert(answer.end(), rest.begin(), rest.end());
  EXPECT_EQ(answer, read_all(whole.generate(capital(), tokens(12))));
  expect_same_future(parts, whole, "in parts");
}

TEST(Session, RewindGoesBackToTheBit) {
  Model model = load(options(2));
  Session session = model.new_session(), fresh = model.new_session();
  read_all(session.generate(long_prompt(100), tokens(5)));
  read_all(fresh.generate(long_prompt(100), tokens(5)));
  const Mark mark = session.mark();
  EXPECT_EQ(mark.tokens(), 105);
  EXPECT_GT(mark.bytes(), 0u);
  read_all(session.generate(capital(), tokens(90)));
  const Mark later = session.mark();
  session.rewind(mark);
  EXPECT_NE(message_of([&] { session.rewind(later); }).find("branch"), std::string::npos);
  EXPECT_NE(message_of([&] { fresh.rewind(mark); }).find("another session"), std::string::npos);
  expect_same_future(session, fresh, "rewound");
  session.rewind(mark);  // as often as one likes
  fresh.clear();
  read_all(fresh.generate(long_prompt(100), tokens(5)));
  expect_same_future(session, fresh, "rewound again");
}

TEST(Session, AMarkOutlivesItsSessionAndFitsNoOther) {
  Model model = load(options(1));
  std::optional<Mark> mark;
  for (int i = 0; i < 3; ++i) {  // sessions at the same address
    Session session = model.new_session();
    read_all(session.generate(capital(), tokens(2)));
    if (mark) {
      EXPECT_NE(message_of([&] { session.rewind(*mark); }).find("another session"), std::string::npos);
    }
    mark = session.mark();
  }
}

TEST(Engine, StepsForEveryAnswerAndStaysOneTokenAhead) {
  Model model = load(options(2));
  Engine engine(model);
  EXPECT_FALSE(engine.step()) << "nothing runs";
  Session a = model.new_session(), b = model.new_session();
  auto first = a.generate(capital(), tokens(5));
  auto second = b.generate(capital(), tokens(5));
  EXPECT_EQ(engine.running(), 2);
  EXPECT_TRUE(engine.step());
  EXPECT_FALSE(engine.step()) << "both have a token that nobody has read";
  const auto before = engine.stats().steps;
  Piece piece;
  EXPECT_TRUE(first.next(piece));
  EXPECT_TRUE(second.next(piece));
  EXPECT_EQ(engine.stats().steps, before) << "the step had served both";
  while (first.next(piece)) {
  }
  EXPECT_EQ(engine.running(), 1);
}

TEST(Session, SameSeedSameAnswer) {
  Model model = load(options(2));
  Sampling how = tokens(40);
  how.temperature = 4;  // the small model is very sure of itself
  how.seed = 42;
  Session a = model.new_session(), b = model.new_session();
  const auto first = read_all(a.generate(capital(), how));
  EXPECT_EQ(first, read_all(b.generate(capital(), how)));
  a.clear();
  how.seed = 43;
  EXPECT_NE(first, read_all(a.generate(capital(), how)));
}

TEST(Session, EndsWhereTheContextEnds) {
  Model model = load(options(1, 1024, 64));
  Session session = model.new_session();
  auto stream = session.generate(capital(), tokens(500));
  int count = 0;
  for (const Piece& p : stream) count += p.token >= 0;
  EXPECT_EQ(stream.stop_reason(), StopReason::context);
  EXPECT_EQ(count + static_cast<int>(capital().size()), 64);
  EXPECT_EQ(session.room(), 0);
  const std::string full = message_of([&] { session.generate(capital(), tokens(1)); });
  EXPECT_NE(full.find("5 tokens does not fit: the session holds 64 of 64 positions"), std::string::npos) << full;
}

TEST(Session, SaysWhatItRefuses) {
  Model model = load(options(1, 1024, 128));
  Session session = model.new_session();
  const auto refusal = [&](std::vector<std::int32_t> prompt, Sampling how) {
    return message_of([&] { session.generate(prompt, how); });
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(refusal({1, 4096}, {}), "token id 4096 is out of range: the model has ids 0 to 4095");
  has(refusal({-1}, {}), "token id -1 is out of range");
  has(refusal({}, {}), "the prompt is empty and so is the session");
  has(refusal(long_prompt(200), {}), "a prompt of 200 tokens does not fit");
  has(refusal(long_prompt(128), {}), "a prompt of 128 tokens does not fit");
  has(message_of([&] { model.new_session(); }), "all 1 sequence slots are in use");
  const auto bad = [&](auto change, const char* part) {
    Sampling how;
    change(how);
    has(refusal({1}, how), part);
  };
  bad([](Sampling& s) { s.temperature = -1; }, "temperature");
  bad([](Sampling& s) { s.temperature = NAN; }, "temperature");
  bad([](Sampling& s) { s.top_p = 0; }, "top_p");
  bad([](Sampling& s) { s.top_p = 1.5f; }, "top_p");
  bad([](Sampling& s) { s.min_p = -0.1f; }, "min_p");
  bad([](Sampling& s) { s.top_k = -1; }, "top_k");
  bad([](Sampling& s) { s.repetition_penalty = 0; }, "repetition_penalty");
  bad([](Sampling& s) { s.max_new_tokens = -1; }, "max_new_tokens");
  bad([](Sampling& s) { s.stop = {""}; }, "stop text is empty");
  EXPECT_TRUE(session.tokens().empty()) << "a refused prompt leaves nothing behind";

  auto stream = session.generate(capital(), tokens(3));
  has(message_of([&] { session.generate(capital(), tokens(3)); }), "an answer is still running");
  has(message_of([&] { session.mark(); }), "an answer is still running");
  has(message_of([&] { session.clear(); }), "an answer is still running");
}

TEST(Load, TheCallersRoundingModeChangesNothing) {
  const auto ids = ids_of("capital");
  for (const char* device : {"cpu", "cpu:profile=bf16"}) {
    Model plain = load(options(), Device::parse(device));
    const Result expected = prefill(plain, ids);
    for (const int mode : {FE_UPWARD, FE_TOWARDZERO}) {
      std::fesetround(mode);
      Model model = load(options(), Device::parse(device));
      const int left = std::fegetround();
      std::fesetround(FE_TONEAREST);
      EXPECT_EQ(left, mode);  // and it leaves the caller's setting alone
      EXPECT_TRUE(same_bytes(prefill(model, ids).logits, expected.logits)) << device << ", mode " << mode;
    }
  }
}

TEST(Load, SaysWhichOptionIsWrong) {
  const auto refusal = [](auto change, const Device& on = Device::cpu()) {
    LoadOptions how = options();
    change(how);
    return message_of([&] { load(how, on); });
  };
  EXPECT_NE(refusal([](LoadOptions& o) { o.max_sequences = 0; }).find("max_sequences"), std::string::npos);
  EXPECT_NE(refusal([](LoadOptions& o) { o.kv_tokens = 0; }).find("kv_tokens"), std::string::npos);
  EXPECT_NE(refusal([](LoadOptions& o) { o.step_tokens = 100; }).find("step_tokens"), std::string::npos);
  EXPECT_NE(refusal([](LoadOptions& o) { o.step_tokens = 64; }).find("from 128"), std::string::npos);
  EXPECT_NE(refusal([](LoadOptions& o) { o.max_drafts = 16; }).find("max_drafts"), std::string::npos);
  const std::string memory = refusal([](LoadOptions& o) { o.kv_tokens = std::int64_t{1} << 32; });
  EXPECT_NE(memory.find("are needed"), std::string::npos) << memory;
  EXPECT_NE(memory.find("lower kv_tokens"), std::string::npos) << memory;
  Device wrong;
  wrong.backend = "vulkan";
  EXPECT_NE(refusal([](LoadOptions&) {}, wrong).find("expected one of "), std::string::npos);
  EXPECT_NE(refusal([](LoadOptions& o) { o.on_progress = [](const LoadProgress&) { return false; }; })
                .find("cancel"),
            std::string::npos);
}

}  // namespace
}  // namespace nibble::test
