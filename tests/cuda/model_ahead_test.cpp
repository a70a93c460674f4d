// Steps that run ahead of the host, on a card: same tokens, same states, to the bit.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "core/api/impl.h"
#include "tests/cuda/model_fixture.h"

namespace nibble {
namespace {

Sampling sampled(int n) {
  Sampling how = answer_of(n);
  how.temperature = 1.2f;
  how.top_p = 0.95f;
  how.repetition_penalty = 1.3f;
  how.seed = 5;
  return how;
}

Model load_ahead(const char* device, std::optional<bool> ahead, int sequences = 3) {
  LoadOptions how;
  how.max_sequences = sequences;
  how.kv_tokens = 4096;
  how.run_ahead = ahead;
  return Model::load(checkpoint(), Device::parse(device), how);
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void expect_same(Session& a, Session& b, const std::string& what) {
  EXPECT_EQ(a.tokens(), b.tokens()) << what;
  const HostState x = a.impl().model->engine->export_state(*a.impl().sequence);
  const HostState y = b.impl().model->engine->export_state(*b.impl().sequence);
  ASSERT_EQ(x.delta.size(), y.delta.size());
  ASSERT_EQ(x.kv.size(), y.kv.size());
  for (std::size_t i = 0; i < x.delta.size(); ++i) {
    EXPECT_TRUE(same(x.delta[i].s, y.delta[i].s) && same(x.delta[i].conv, y.delta[i].conv)) << what << ", delta " << i;
  }
  for (std::size_t i = 0; i < x.kv.size(); ++i) {
    EXPECT_TRUE(same(x.kv[i].k, y.kv[i].k) && same(x.kv[i].v, y.kv[i].v)) << what << ", kv " << i;
  }
}

std::vector<std::int32_t> read(TokenStream& stream, int pieces) {
  std::vector<std::int32_t> tokens;
  Piece piece;
  for (int i = 0; i < pieces && stream.next(piece); ++i) {
    if (piece.token >= 0) tokens.push_back(piece.token);
  }
  return tokens;
}

class CudaAhead : public CudaModel {};

TEST_F(CudaAhead, ACardRunsAheadUnlessItIsTold) {
  for (const std::optional<bool> asked : {std::optional<bool>{}, std::optional<bool>{true}, std::optional<bool>{false}}) {
    const Model model = load_ahead("cuda", asked);
    Session session = model.new_session();
    read_all(session.generate(some_tokens(100), answer_of(50)));
    EXPECT_EQ(model.stats().ahead_steps, asked.value_or(true) ? 48u : 0u);
    EXPECT_EQ(model.stats().taken_back_rows, 0u);
    EXPECT_EQ(model.stats().steps, 50u);
  }
}

TEST_F(CudaAhead, ChangesNoBit) {
  for (const char* device : {"cuda", "cuda:graphs=off", "cuda:arch-path=sm70", "cuda:arch-path=sm120"}) {
    const Model on = load_ahead(device, true), off = load_ahead(device, false);
    const auto prompt = some_tokens(150);
    Session a = on.new_session(), b = off.new_session();
    for (const Sampling& how : {answer_of(70), sampled(70)}) {
      const auto answer = read_all(b.generate(prompt, how));
      EXPECT_EQ(read_all(a.generate(prompt, how)), answer) << device;
      expect_same(a, b, device);
      a.clear();
      b.clear();
      // A stop token in the middle, then the next turn.
      Sampling stop = how;
      stop.stop_tokens = {answer[20]};
      EXPECT_EQ(read_all(a.generate(prompt, stop)), read_all(b.generate(prompt, stop))) << device;
      expect_same(a, b, std::string(device) + ", stopped");
      // Readers that leave.
      for (int pieces = 0; pieces < 5; ++pieces) {
        for (Session* s : {&a, &b}) {
          auto stream = s->generate(some_tokens(static_cast<std::size_t>(1 + 20 * pieces), 3), sampled(30));
          read(stream, pieces);
        }
        expect_same(a, b, std::string(device) + ", left after " + std::to_string(pieces));
      }
      EXPECT_EQ(read_all(a.generate({}, sampled(9))), read_all(b.generate({}, sampled(9)))) << device;
      expect_same(a, b, std::string(device) + ", gone on");
      a.clear();
      b.clear();
    }
    EXPECT_GT(on.stats().ahead_steps, 150u);
    EXPECT_GT(on.stats().taken_back_rows, 5u);
    EXPECT_EQ(off.stats().ahead_steps + off.stats().taken_back_rows, 0u);
  }
}

// One answer has a step in flight whenever the other session does something.
TEST_F(CudaAhead, OthersActWhileAStepIsInFlight) {
  const Model on = load_ahead("cuda", true), off = load_ahead("cuda", false);
  Session a[2] = {on.new_session(), off.new_session()}, b[2] = {on.new_session(), off.new_session()};
  std::vector<std::vector<std::int32_t>> tokens[2];
  std::vector<double> scores[2];
  for (int side = 0; side < 2; ++side) {
    auto& told = tokens[side];
    read_all(b[side].generate(some_tokens(90, 4), sampled(5)));
    auto stream = a[side].generate(some_tokens(40), sampled(200));
    told.push_back(read(stream, 10));
    const Mark mark = b[side].mark();
    told.push_back(read(stream, 5));
    scores[side] = b[side].score(some_tokens(70, 9));
    told.push_back(read(stream, 5));
    b[side].rewind(mark);
    told.push_back(read(stream, 1));
    told.push_back(read_all(b[side].generate(some_tokens(30, 8), sampled(12))));
    told.push_back(read(stream, 7));
    b[side].clear();
    told.push_back(read(stream, 3));
    told.push_back(read_all(b[side].generate(some_tokens(65, 2), sampled(12))));
    {
      auto other = b[side].generate(some_tokens(3, 6), sampled(100));
      for (int i = 0; i < 30; ++i) {
        told.push_back(read(stream, i % 3));
        told.push_back(read(other, i % 4));
      }
    }
    told.push_back(read(stream, 4));
  }
  EXPECT_EQ(tokens[0], tokens[1]);
  EXPECT_EQ(scores[0], scores[1]);
  expect_same(a[0], a[1], "the long answer");
  expect_same(b[0], b[1], "the others");
  EXPECT_GT(on.stats().ahead_steps, 20u);
}

TEST_F(CudaAhead, ReadersOnThreadsOfTheirOwn) {
  constexpr int kReaders = 4;
  const auto answer = [](const Model& model, int i) {
    Session session = model.new_session();
    std::vector<std::vector<std::int32_t>> out;
    for (int turn = 0; turn < 3; ++turn) {
      auto stream = session.generate(some_tokens(static_cast<std::size_t>(5 + 60 * i), 2), sampled(60 + 10 * i));
      out.push_back(read(stream, turn == 1 ? 10 + i : 1000));
    }
    return out;
  };
  const Model alone = load_ahead("cuda", false), model = load_ahead("cuda", true, kReaders);
  std::vector<std::vector<std::int32_t>> got[kReaders];
  std::vector<std::thread> threads;
  for (int i = 0; i < kReaders; ++i) threads.emplace_back([&, i] { got[i] = answer(model, i); });
  for (std::thread& t : threads) t.join();
  for (int i = 0; i < kReaders; ++i) EXPECT_EQ(got[i], answer(alone, i)) << i;
  EXPECT_GT(model.stats().ahead_steps, 0u);
}

// One thread, eight answers of different lengths and stops.
TEST_F(CudaAhead, AnswersThatOneThreadReads) {
  constexpr std::size_t kAnswers = 8;
  std::vector<std::vector<std::int32_t>> tokens[2];
  for (const bool ahead : {false, true}) {
    const Model model = load_ahead("cuda", ahead, kAnswers);
    std::vector<Session> sessions;
    std::vector<TokenStream> streams;
    for (std::size_t i = 0; i < kAnswers; ++i) {
      sessions.push_back(model.new_session());
      Sampling how = sampled(static_cast<int>(40 + 20 * i));
      if (ahead && i % 2 == 0) how.stop_tokens = {tokens[0][i][30 + i]};
      streams.push_back(sessions.back().generate(some_tokens(1 + 40 * i, static_cast<std::uint32_t>(i)), how));
    }
    std::vector<Piece> pieces(kAnswers);
    auto& all = tokens[ahead];
    all.resize(kAnswers);
    while (TokenStream::next_of_each(streams, pieces) > 0) {
      for (std::size_t i = 0; i < kAnswers; ++i) {
        if (pieces[i].token >= 0) all[i].push_back(pieces[i].token);
      }
    }
    const StepStats stats = model.stats();
    EXPECT_EQ(stats.ahead_steps > 100, ahead);
    EXPECT_EQ(stats.taken_back_rows > 0, ahead);
    EXPECT_EQ(stats.allocations, 0u);
  }
  for (std::size_t i = 0; i < kAnswers; ++i) {
    if (i % 2 == 0) {  // up to its stop token
      const auto end = std::find(tokens[0][i].begin(), tokens[0][i].end(), tokens[0][i][30 + i]) + 1;
      tokens[0][i].erase(end, tokens[0][i].end());
    }
    EXPECT_EQ(tokens[1][i], tokens[0][i]) << i;
  }
}

TEST_F(CudaAhead, NoMomentCountsTwice) {
  const Model model = load_ahead("cuda", true);
  Session session = model.new_session();
  read_all(session.generate(some_tokens(64), answer_of(4)));
  const StepStats before = model.stats();
  const auto start = std::chrono::steady_clock::now();
  read_all(session.generate(some_tokens(64), answer_of(200)));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const StepStats after = model.stats();
  const double counted =
      after.decode_seconds - before.decode_seconds + after.prefill_seconds - before.prefill_seconds;
  EXPECT_GT(after.decode_seconds, before.decode_seconds);
  EXPECT_LT(counted, took.count());
}

TEST_F(CudaAhead, AModelEndsWithAStepInFlight) {
  for (int i = 0; i < 3; ++i) {
    std::optional<Model> model = load_ahead("cuda", true);
    std::optional<Session> session = model->new_session();
    std::optional<TokenStream> stream = session->generate(some_tokens(20), answer_of(100));
    EXPECT_EQ(read(*stream, 5).size(), 5u);
    EXPECT_GT(model->stats().ahead_steps, model->stats().taken_back_rows);
    model.reset();
    if (i == 1) session.reset();
    stream.reset();
  }
}

}  // namespace
}  // namespace nibble
