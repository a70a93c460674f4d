// A row does not feel its neighbours, the cuts of its prompt, the threads or the instruction set.
#include "tests/engine/support.h"

namespace nibble::test {
namespace {

struct Result {
  std::vector<float> logits;
  HostState state;
  std::vector<std::int32_t> tokens;
};

Result prefill(Model& model, std::span<const std::int32_t> prompt, std::size_t scored_first = 0) {
  Session session = model.new_session();
  // Scoring n + 1 tokens runs n rows and leaves the last for the prompt that follows.
  if (scored_first > 0) {
    session.score(prompt.first(scored_first + 1));
    prompt = prompt.subspan(scored_first + 1);
  }
  Trace trace(model, {kLogits});
  Result run;
  run.tokens = read_all(session.generate(prompt, tokens(1)));
  run.logits = trace.ops.at(kLogits).values;
  run.state = state_of(session);
  return run;
}

TEST(Invariance, PrefillCutAtEveryMultipleOf64GivesTheSameBits) {
  const auto prompt = long_prompt(330);
  Model whole_model = load(options(1, 1024));
  const Result whole = prefill(whole_model, prompt);
  for (int step_tokens = 128; step_tokens <= 320; step_tokens += 64) {
    Model model = load(options(1, step_tokens));
    const Result cut = prefill(model, prompt);
    EXPECT_TRUE(same_bytes(cut.logits, whole.logits)) << "steps of " << step_tokens;
    expect_same_state(cut.state, whole.state, "steps of " + std::to_string(step_tokens));
  }
  for (std::size_t at = 64; at < prompt.size(); at += 64) {
    const Result cut = prefill(whole_model, prompt, at);
    EXPECT_TRUE(same_bytes(cut.logits, whole.logits)) << "cut at " << at;
    expect_same_state(cut.state, whole.state, "cut at " + std::to_string(at));
  }
}

// Different cuts below 64 tokens are different sums; this is how far apart they may be.
constexpr double kRounding = 1e-4;

struct Named {
  std::string name;
  std::vector<std::int32_t> ids;
};

// Their smallest margin between the best tokens is 0.0044: rounding decides none of them.
std::vector<Named> several_prompts() {
  const Golden golden(data("golden/prompts.safetensors"));
  std::vector<Named> out;
  for (const char* id : {"capital", "one_token", "chat_japan", "unicode"}) {
    out.push_back({id, golden.i32(std::string(id) + ".ids")});
  }
  out.push_back({"long130", long_prompt(130)});
  return out;
}

// A prompt fed one row at a time through the chunked path, then 32 tokens.
TEST(Invariance, SingleRowsAgreeWithinRounding) {
  Model model = load(options(2));
  for (const auto& [name, prompt] : several_prompts()) {
    Session whole = model.new_session(), single = model.new_session();
    for (const std::int32_t token : prompt) single.score(std::span(&token, 1));
    Trace of_whole(model, {kLogits});
    const auto expected = read_all(whole.generate(prompt, tokens(32)));
    const auto logits = of_whole.ops.at(kLogits).values;
    Trace of_single(model, {kLogits});  // takes over
    EXPECT_EQ(read_all(single.generate({}, tokens(32))), expected) << name;
    EXPECT_EQ(expected.size(), 32u);
    EXPECT_LE(largest_difference(of_single.ops.at(kLogits).values, logits), kRounding) << name;
  }
}

// A hundred decode rows (the recurrence) against chunks over the same tokens: every token, every logit.
TEST(Invariance, DecodeAgreesWithPrefillWithinRounding) {
  Model model = load(options(2));
  double worst = 0;
  for (const auto& [name, prompt] : several_prompts()) {
    Session stepped = model.new_session(), chunked = model.new_session();
    std::vector<std::int32_t> answer;
    std::vector<float> decoded;
    {
      Trace trace(model, {kLogits});
      answer = read_all(stepped.generate(prompt, tokens(100)));
      decoded = trace.ops.at(kLogits).values;
    }
    ASSERT_EQ(answer.size(), 100u);
    std::vector<std::int32_t> history = prompt;
    history.insert(history.end(), answer.begin(), answer.end());
    Trace trace(model, {kLogits});
    chunked.score(history);
    const auto& rows = trace.ops.at(kLogits);
    // The row of each answer's predecessor.
    const auto first = static_cast<std::int64_t>(prompt.size()) - 1;
    ASSERT_EQ(rows.rows(), first + 100);
    for (std::int64_t i = 0; i < 100; ++i) {
      const auto row = rows.row(first + i);
      EXPECT_EQ(std::max_element(row.begin(), row.end()) - row.begin(), answer[static_cast<std::size_t>(i)])
          << name << ": token " << i;
    }
    const auto scored = std::span(rows.values).subspan(static_cast<std::size_t>(first * rows.cols));
    worst = std::max(worst, largest_difference(decoded, scored));
    const HostState a = state_of(stepped), b = state_of(chunked);
    for (std::size_t i = 0; i < a.delta.size(); ++i) {
      EXPECT_LE(relative_l2(a.delta[i].s, b.delta[i].s), 1e-5) << name << ": layer " << i;
    }
  }
  std::printf("100 decode rows against prefill: logits within %.2g\n", worst);
  EXPECT_LE(worst, kRounding);
}

TEST(Invariance, ThreadsAndInstructionSetsChangeNothing) {
  const auto prompt = long_prompt(150);
  std::vector<Result> runs;
  std::vector<std::string> names;
  for (const int threads : {1, 2, 7}) {
    for (const char* kernels : {"", "portable"}) {
      if (*kernels != 0 && threads == 2) continue;
      Device on = Device::cpu(threads);
      on.kernels = kernels;
      Model model = load(options(), on);
      Session session = model.new_session();
      Trace trace(model, {kLogits});
      Result run;
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

// The rows of a trace, each as its bytes, in an order of their own.
std::vector<std::string> sorted_rows(const Trace::Rows& rows) {
  std::vector<std::string> out;
  for (std::int64_t r = 0; r < rows.rows(); ++r) {
    const auto bytes = std::as_bytes(rows.row(r));
    out.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::sort(out.begin(), out.end());
  return out;
}

// Eight sequences join and leave at different steps, with prompts of 1 to 694 tokens in steps of 192;
// each has the bits that it has alone: tokens, states, and the logits of every token.
TEST(Invariance, EightSequencesTogetherEachAsAlone) {
  constexpr int kCount = 8;
  Model together = load(options(kCount, 192));
  Model alone = load(options(1, 192));
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<Sampling> how;
  for (int i = 0; i < kCount; ++i) {
    auto p = long_prompt(700);
    std::rotate(p.begin(), p.begin() + i * 7, p.end());  // no two begin alike
    p.resize(static_cast<std::size_t>(1 + i * 99));
    prompts.push_back(std::move(p));
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
  Trace of_together(together, {kLogits});
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
  std::size_t tokens_made = 0;
  for (const auto& answer : answers) tokens_made += answer.size();
  EXPECT_LT(together.stats().steps, tokens_made) << "no step served two sequences";

  Trace of_alone(alone, {kLogits});
  for (std::size_t i = 0; i < kCount; ++i) {
    Session session = alone.new_session();
    EXPECT_EQ(read_all(session.generate(prompts[i], how[i])), answers[i]) << "sequence " << i;
    expect_same_state(state_of(sessions[i]), state_of(session), "sequence " + std::to_string(i));
  }
  // A step's rows come in the order of its batch, so the runs are compared as sets of rows.
  const auto rows = sorted_rows(of_together.ops.at(kLogits)), expected = sorted_rows(of_alone.ops.at(kLogits));
  EXPECT_EQ(rows.size(), tokens_made);
  EXPECT_TRUE(rows == expected) << "logits differ";
}

TEST(Invariance, LaunchesDoNotGrowWithTokensAndNothingIsCopiedToADevice) {
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
