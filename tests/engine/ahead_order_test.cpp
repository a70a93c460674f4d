// Many callers in any order, with and without running ahead: the same tokens, texts, states and refusals.
#include <map>
#include <random>
#include <sstream>
#include <thread>

#include "tests/engine/ahead_support.h"

namespace nibble::test {
namespace {

// Answers that grow into the last page, read in any order: the same ones find none.
TEST(AheadOrder, PagesRunOutForTheSameAnswers) {
  std::mt19937 random(5);
  const auto draw = [&](std::size_t n) { return random() % n; };
  Twins t(options(2, 1024, 192), 2);
  // Each round begins a few tokens before the first page is full.
  std::vector<Mark> marks[2];
  for (const bool side : {false, true}) {
    for (Session& s : side ? t.a : t.b) {
      read_all(s.generate(long_prompt(50), tokens(1)));
      marks[side].push_back(s.mark());
    }
  }
  int ended = 0;
  for (int round = 0; round < 250; ++round) {
    const std::size_t lengths[] = {5 + draw(7), 5 + draw(7)}, first = draw(2);
    std::vector<std::size_t> order;  // 2: both
    for (int i = 0; i < 14; ++i) order.insert(order.end(), 1 + draw(3), draw(3));
    std::vector<std::string> said[2];
    for (const bool side : {false, true}) {
      std::vector<Session>& sessions = side ? t.a : t.b;
      for (std::size_t i = 0; i < 2; ++i) sessions[i].rewind(marks[side][i]);
      std::vector<TokenStream> streams;
      for (const std::size_t i : {first, 1 - first}) {
        streams.push_back(sessions[i].generate(long_prompt(lengths[i]), tokens(14)));
      }
      std::vector<Piece> pieces(2);
      for (const std::size_t who : order) {
        for (Piece& p : pieces) p = {};
        if (who == 2) {
          TokenStream::next_of_each(streams, pieces);
        } else if (!streams[who].next(pieces[who])) {
          pieces[who] = {};
        }
        for (std::size_t i = 0; i < 2; ++i) {
          said[side].push_back(std::to_string(pieces[i].token) + stop_reason_name(streams[i].stop_reason()));
          ended += streams[i].stop_reason() == StopReason::context;
        }
      }
    }
    ASSERT_EQ(said[0], said[1]) << round;
    for (std::size_t i = 0; i < 2; ++i) expect_same(t.a[i], t.b[i], "round " + std::to_string(round));
  }
  EXPECT_GT(ended, 100);
  EXPECT_GT(t.ahead.stats().ahead_steps, 500u);
}

// Everything that a caller can do, in a random order, on both sides.
class Callers {
 public:
  Callers(std::uint32_t seed, std::int64_t kv_tokens) : random_(seed), t_(options(kSessions + 1, 256, kv_tokens), kSessions) {
    for (int i = 0; i < kSessions; ++i) places_[i] = {};
  }

  void act() {
    const int i = draw(kSessions);
    Place& p = places_[i];
    const std::string who = "session " + std::to_string(i) + ", ";
    switch (draw(20)) {
      case 0:
        return drop(p);
      case 1:
        return both(who + "clear", [&](bool side) { session(side, i).clear(); });
      case 2:
        return both(who + "mark", [&](bool side) { p.mark[side] = session(side, i).mark(); });
      case 3:
        if (!p.mark[0] || !p.mark[1]) return;
        return both(who + "rewind", [&](bool side) { session(side, i).rewind(*p.mark[side]); });
      case 4: {
        const auto ids = prompt(draw(90));
        return both(who + "score", [&](bool side) { out_ << session(side, i).score(ids).size(); });
      }
      case 11:
        return read_all();
      case 5:
        both("step", [&](bool side) { Engine(model(side)).step(); });
        return;
      case 6:
        if (draw(2)) drop(p);
        expect_same(session(true, i), session(false, i), who + "state");
        return;
      case 7:
        if (draw(4) > 0) return;
        drop(p);
        p = {};
        t_.a[i] = Session(t_.ahead.new_session());
        t_.b[i] = Session(t_.plain.new_session());
        return;
      case 8:
      case 9:
      case 10: {
        Sampling how = draw(2) ? sampled(1 + draw(40)) : tokens(1 + draw(40));
        if (draw(3) == 0) how.stop_tokens = prompt(300);
        if (draw(4) == 0) how.stop = {"a", "e"};
        const auto ids = prompt(draw(4) == 0 ? 0 : 1 + draw(80));
        return both(who + "generate", [&](bool side) {
          std::optional<TokenStream> stream = session(side, i).generate(ids, how);
          p.stream[side] = std::move(stream);
        });
      }
      default:
        for (int n = 1 + draw(6); n-- > 0;) read(p, who);
    }
  }
  const Twins& twins() const { return t_; }
  void end() {
    for (int i = 0; i < kSessions; ++i) {
      drop(places_[i]);
      expect_same(t_.a[i], t_.b[i], "at the end, session " + std::to_string(i));
    }
  }

 private:
  static constexpr int kSessions = 3;
  struct Place {
    std::optional<TokenStream> stream[2];
    std::optional<Mark> mark[2];
  };

  int draw(int n) { return static_cast<int>(random_() % static_cast<std::uint32_t>(n)); }
  std::vector<std::int32_t> prompt(int n) {
    std::vector<std::int32_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back(draw(4000));
    return ids;
  }
  Session& session(bool side, int i) { return (side ? t_.a : t_.b)[static_cast<std::size_t>(i)]; }
  const Model& model(bool side) const { return side ? t_.ahead : t_.plain; }

  template <class F>
  void both(const std::string& what, F&& f) {
    std::string said[2];
    for (const bool side : {false, true}) {
      out_.str("");
      said[side] = message_of([&] { f(side); }) + " " + out_.str();
    }
    EXPECT_EQ(said[1], said[0]) << what;
  }
  // Those that have an answer, the others' places stay.
  void read_all() {
    std::vector<Place*> who;
    for (auto& [i, p] : places_) {
      if (p.stream[0] && p.stream[1]) who.push_back(&p);
    }
    for (int n = 1 + draw(6); n-- > 0;) {
      both("next of each", [&](bool side) {
        std::vector<TokenStream> streams;
        for (Place* p : who) streams.push_back(std::move(*p->stream[side]));
        std::vector<Piece> pieces(streams.size());
        out_ << TokenStream::next_of_each(streams, pieces);
        for (std::size_t i = 0; i < who.size(); ++i) {
          out_ << ' ' << pieces[i].token << pieces[i].text << stop_reason_name(streams[i].stop_reason());
          *who[i]->stream[side] = std::move(streams[i]);
        }
      });
    }
  }
  void drop(Place& p) {
    for (auto& s : p.stream) s.reset();
  }
  void read(Place& p, const std::string& who) {
    if (!p.stream[0] || !p.stream[1]) return;
    both(who + "next", [&](bool side) {
      Piece piece;
      const bool more = p.stream[side]->next(piece);
      out_ << more;
      if (more) out_ << piece.token << piece.text;
      out_ << stop_reason_name(p.stream[side]->stop_reason()) << p.stream[side]->new_tokens();
    });
  }

  std::mt19937 random_;
  std::ostringstream out_;
  std::map<int, Place> places_;  // streams end before their models
  Twins t_;
};

TEST(AheadOrder, WhateverCallersDo) {
  std::uint64_t ahead = 0, back = 0;
  for (std::uint32_t seed = 1; seed <= 8; ++seed) {
    // With few pages answers and prompts run out of them.
    Callers callers(seed, seed % 2 ? 4096 : 320);
    for (int i = 0; i < 250 && !testing::Test::HasFailure(); ++i) callers.act();
    callers.end();
    ahead += callers.twins().ahead.stats().ahead_steps;
    back += callers.twins().ahead.stats().taken_back_rows;
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
  EXPECT_GT(ahead, 200u);
  EXPECT_GT(back, 30u);
}

TEST(AheadOrder, ReadersOnThreadsOfTheirOwn) {
  constexpr int kReaders = 4;
  Model alone = load_ahead(false);
  std::vector<Answer> expected;
  const auto how_of = [](int i) { return i % 2 ? sampled(30 + i) : tokens(30 + 5 * i); };
  const auto pieces_of = [](int i, int turn) { return turn == 1 ? 7 + i : 1 << 20; };
  for (int i = 0; i < kReaders; ++i) {
    Session s = alone.new_session();
    for (int turn = 0; turn < 3; ++turn) {
      expected.push_back(answer(s, long_prompt(static_cast<std::size_t>(10 + 30 * i)), how_of(i), pieces_of(i, turn)));
    }
  }
  Model model = load_ahead(true, options(kReaders));
  std::vector<Answer> got(expected.size());
  std::vector<std::thread> threads;
  for (int i = 0; i < kReaders; ++i) {
    threads.emplace_back([&, i] {
      Session s = model.new_session();
      for (int turn = 0; turn < 3; ++turn) {
        got[static_cast<std::size_t>(3 * i + turn)] =
            answer(s, long_prompt(static_cast<std::size_t>(10 + 30 * i)), how_of(i), pieces_of(i, turn));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (std::size_t i = 0; i < got.size(); ++i) {
    // The others' steps may have made a token that a reader who left did not see.
    if (i % 3 == 1) got[i].count = expected[i].count;
    EXPECT_EQ(got[i].tokens, expected[i].tokens) << i;
    EXPECT_EQ(got[i], expected[i]) << i;
  }
  EXPECT_GT(model.stats().ahead_steps, 0u);
}

}  // namespace
}  // namespace nibble::test
