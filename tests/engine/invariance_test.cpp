// A row does not feel its neighbours, the cuts of its prompt, the threads or the instruction set.
#include "tests/engine/support.h"

namespace nibble::test {
namespace {

struct Run {
  std::vector<float> logits;
  HostState state;
  std::vector<std::int32_t> tokens;
};

Run prefill(Model& model, std::span<const std::int32_t> prompt, std::size_t scored_first = 0) {
  Session session = model.new_session();
  // Scoring n + 1 tokens runs n rows and leaves the last for the prompt that follows.
  if (scored_first > 0) {
    session.score(prompt.first(scored_first + 1));
    prompt = prompt.subspan(scored_first + 1);
  }
  Trace trace(model, {kLogits});
  Run run;
  run.tokens = read_all(session.generate(prompt, tokens(1)));
  run.logits = trace.ops.at(kLogits).values;
  run.state = state_of(session);
  return run;
}

TEST(Invariance, PrefillCutAtEveryMultipleOf64GivesTheSameBits) {
  const auto prompt = long_prompt(330);
  Model whole_model = load(options(1, 1024));
  const Run whole = prefill(whole_model, prompt);
  for (int step_tokens = 128; step_tokens <= 320; step_tokens += 64) {
    Model model = load(options(1, step_tokens));
    const Run cut = prefill(model, prompt);
    EXPECT_TRUE(same_bytes(cut.logits, whole.logits)) << "steps of " << step_tokens;
    expect_same_state(cut.state, whole.state, "steps of " + std::to_string(step_tokens));
  }
  for (std::size_t at = 64; at < prompt.size(); at += 64) {
    const Run cut = prefill(whole_model, prompt, at);
    EXPECT_TRUE(same_bytes(cut.logits, whole.logits)) << "cut at " << at;
    expect_same_state(cut.state, whole.state, "cut at " + std::to_string(at));
  }
}

TEST(Invariance, SingleStepsAgreeWithinRounding) {
  const auto prompt = long_prompt(130);
  Model model = load(options());
  const Run whole = prefill(model, prompt);

  // One row at a time through the chunked path.
  Session session = model.new_session();
  session.score(std::span(prompt).first(1));
  for (std::size_t i = 1; i < prompt.size(); ++i) session.score(std::span(prompt).subspan(i, 1));
  {
    Trace trace(model, {kLogits});
    EXPECT_EQ(read_all(session.generate({}, tokens(1))), whole.tokens);
    EXPECT_LE(largest_difference(trace.ops.at(kLogits).values, whole.logits), 1e-4);
  }

  // Decode rows (the recurrence) against a prefill of the same tokens (chunks).
  Session stepped = model.new_session();
  Trace trace(model, {kLogits});
  const auto answer = read_all(stepped.generate(prompt, tokens(100)));
  std::vector<std::int32_t> history = prompt;
  history.insert(history.end(), answer.begin(), answer.end() - 1);
  const auto& rows = trace.ops.at(kLogits);
  const auto last = rows.row(rows.rows() - 1);
  const std::vector<float> decoded(last.begin(), last.end());
  const HostState decoded_state = state_of(stepped);
  stepped.clear();
  const Run again = prefill(model, history);
  const double worst = largest_difference(decoded, again.logits);
  std::printf("100 decode rows against one prefill: logits within %.2g\n", worst);
  EXPECT_LE(worst, 1e-4);
  EXPECT_EQ(again.tokens.front(), answer.back());
  for (std::size_t i = 0; i < decoded_state.delta.size(); ++i) {
    EXPECT_LE(relative_l2(decoded_state.delta[i].s, again.state.delta[i].s), 1e-5);
  }
}

TEST(Invariance, ThreadsAndInstructionSetsChangeNothing) {
  const auto prompt = long_prompt(150);
  std::vector<Run> runs;
  std::vector<std::string> names;
  for (const int threads : {1, 2, 7}) {
    for (const char* kernels : {"", "portable"}) {
      if (*kernels != 0 && threads == 2) continue;
      Device on = Device::cpu(threads);
      on.kernels = kernels;
      Model model = load(options(), on);
      Session session = model.new_session();
      Trace trace(model, {kLogits});
      Run run;
      run.tokens = read_all(session.generate(prompt, tokens(4)));
      run.logits = trace.ops.at(kLogits).values;
      run.state = state_of(session);
      runs.push_back(std::move(run));
      names.push_back(std::to_string(threads) + " threads, " + model.info().kernels);
    }
  }
  for (std::size_t i = 1; i < runs.size(); ++i) {
    EXPECT_EQ(runs[i].tokens, runs[0].tokens) << names[i];
    EXPECT_TRUE(same_bytes(runs[i].logits, runs[0].logits)) << names[i] << " against " << names[0];
    expect_same_state(runs[i].state, runs[0].state, names[i]);
  }
}

// Eight sequences join and leave at different steps; each has the bits that it has alone.
TEST(Invariance, EightSequencesTogetherEachAsAlone) {
  constexpr int kCount = 8;
  Model together = load(options(kCount, 192));
  Model alone = load(options(1, 192));
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<Sampling> how;
  for (int i = 0; i < kCount; ++i) {
    auto p = long_prompt(static_cast<std::size_t>(200 + 0 * i));
    prompts.emplace_back(p.begin() + i * 7, p.begin() + i * 7 + 1 + i * 17);
    Sampling s = tokens(6 + 5 * i);
    if (i % 2 == 1) {
      s.temperature = 0.8f;
      s.top_p = 0.9f;
      s.seed = static_cast<std::uint64_t>(i);
      s.repetition_penalty = i == 3 ? 1.3f : 1.0f;
    }
    how.push_back(s);
  }

  std::vector<Session> sessions;
  std::vector<std::unique_ptr<TokenStream>> streams;
  std::vector<std::vector<std::int32_t>> answers(kCount);
  for (int turn = 0; static_cast<int>(streams.size()) < kCount ||
                     std::any_of(streams.begin(), streams.end(), [](const auto& s) { return s != nullptr; });
       ++turn) {
    if (turn % 2 == 0 && static_cast<int>(streams.size()) < kCount) {  // one more joins
      const std::size_t i = streams.size();
      sessions.push_back(together.new_session());
      streams.push_back(std::make_unique<TokenStream>(sessions.back().generate(prompts[i], how[i])));
    }
    for (std::size_t i = 0; i < streams.size(); ++i) {
      Piece piece;
      if (!streams[i]) continue;
      if (!streams[i]->next(piece)) {
        streams[i].reset();
      } else if (piece.token >= 0) {
        answers[i].push_back(piece.token);
      }
    }
  }
  EXPECT_GT(together.stats().launches, 0u);

  for (std::size_t i = 0; i < kCount; ++i) {
    Session session = alone.new_session();
    EXPECT_EQ(read_all(session.generate(prompts[i], how[i])), answers[i]) << "sequence " << i;
    expect_same_state(state_of(sessions[i]), state_of(session), "sequence " + std::to_string(i));
  }
}

TEST(Invariance, LaunchesDoNotGrowWithTokensAndNothingIsAllocated) {
  Model model = load(options());
  std::vector<std::uint64_t> launches;
  for (const std::size_t n : {1u, 5u, 700u}) {
    Session session = model.new_session();
    read_all(session.generate(long_prompt(n), tokens(1)));
    launches.push_back(model.stats().last_launches);
  }
  EXPECT_EQ(launches[0], launches[1]);
  EXPECT_EQ(launches[0], launches[2]);
  EXPECT_EQ(model.stats().allocations, 0u);
  EXPECT_EQ(model.stats().host_to_device_bytes, 0u);
}

}  // namespace
}  // namespace nibble::test
