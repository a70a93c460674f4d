// The engine's own steps on the shipped model: scheduling, the batch, the ops, the text of the answer.
#include "tests/engine/support.h"
#include "tests/support/count_allocations.h"

namespace nibble::test {
namespace {

Sampling answer(int n, int i) {
  Sampling how = tokens(n);
  how.temperature = i % 2 ? 0.8f : 0;
  how.top_p = 0.9f;
  how.repetition_penalty = i < 2 ? 1.0f : 1.1f;
  if (i == 3) how.stop = {"no such text", "nor this one"};
  return how;
}

// What the steps and the reading of `n` tokens of four answers allocate. Prompts take several steps.
std::uint64_t of_answers(Model& model, int n) {
  Engine engine(model);
  std::vector<Session> sessions;
  std::vector<TokenStream> streams;
  for (int i = 0; i < 4; ++i) {
    sessions.push_back(model.new_session());
    streams.push_back(sessions.back().generate(long_prompt(static_cast<std::size_t>(30 + 200 * i)), answer(n, i)));
  }
  std::uint64_t counted = 0;
  int read = 0;
  for (bool any = true; any;) {
    any = false;
    counted += allocations_in([&] { engine.step(); });
    for (TokenStream& stream : streams) {
      Piece piece;
      bool more = false;
      counted += allocations_in([&] { more = stream.next(piece); });
      if (more && piece.token >= 0) ++read;
      any = any || more;
    }
  }
  EXPECT_EQ(read, 4 * n);
  return counted;
}

TEST(EngineAllocations, NoneInAStep) {
  Model model = load(options(4, 192), Device::cpu(1));
  EXPECT_GT(allocations_in([&] { model.new_session(); }), 0u) << "nothing is counted";
  of_answers(model, 5);  // whatever is made once
  EXPECT_EQ(of_answers(model, 5), 0u);
  EXPECT_EQ(of_answers(model, 220), 0u);
  EXPECT_EQ(model.stats().allocations, 0u);
}

// Steps that start before the tokens of the step before are known, and rows that are taken back.
TEST(EngineAllocations, NoneInAStepAhead) {
  LoadOptions how = options(4, 192);
  how.run_ahead = true;
  Model model = load(how, Device::cpu(1));
  std::vector<std::int32_t> stop;
  const auto of_rounds = [&](int n) {
    std::vector<Session> sessions;
    std::vector<TokenStream> streams;
    for (int i = 0; i < 4; ++i) {
      sessions.push_back(model.new_session());
      Sampling of = answer(i == 0 ? n / 2 : n, i);
      if (i == 1) of.stop_tokens = stop;
      streams.push_back(sessions.back().generate(long_prompt(static_cast<std::size_t>(30 + 200 * i)), of));
    }
    std::vector<Piece> pieces(streams.size());
    const std::uint64_t counted = allocations_in([&] {
      while (TokenStream::next_of_each(streams, pieces) > 0) {
      }
    });
    if (stop.empty()) stop = {sessions[1].tokens().back()};
    return counted;
  };
  of_rounds(60);
  const StepStats before = model.stats();
  EXPECT_EQ(of_rounds(120), 0u);
  EXPECT_GT(model.stats().ahead_steps, before.ahead_steps + 50);
  EXPECT_GT(model.stats().taken_back_rows, before.taken_back_rows) << "no answer met a stop token";
}

// Inputs that are quantised, by ops of their own and by those that make them.
TEST(EngineAllocations, NoneInAStepThatPacks) {
  for (const char* device : {"cpu:threads=1", "cpu:threads=1,fused-pack=off", "cpu:threads=1,mirror=sm70"}) {
    LoadOptions how = options(4, 192);
    how.activations = Activations::declared;
    Model model = load(how, Device::parse(device));
    of_answers(model, 5);
    EXPECT_EQ(of_answers(model, 5), 0u) << device;
  }
}

// The numbers that score() returns are the caller's; its steps need nothing.
TEST(EngineAllocations, ScoringNeedsAsManyForAnyLength) {
  Model model = load(options(), Device::cpu(1));
  const auto of_score = [&](std::size_t n) {
    Session session = model.new_session();
    const auto ids = long_prompt(n);
    return allocations_in([&] { session.score(ids); });
  };
  of_score(700);
  EXPECT_EQ(of_score(70), of_score(700));
}

}  // namespace
}  // namespace nibble::test
