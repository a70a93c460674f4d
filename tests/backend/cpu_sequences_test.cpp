// Sequences on the two-layer toy: a row depends on its own sequence only, and going back is as if
// nothing had happened. All comparisons are of bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "backends/cpu/cpu_backend.h"
#include "tests/backend/toy.h"

namespace nibble::cpu {
namespace {

using test::BatchBuilder;
using test::Sequence;
using Logits = std::vector<std::vector<float>>;

constexpr std::int32_t kPagesEach = 8;

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void expect_same(const HostState& a, const HostState& b) {
  ASSERT_EQ(a.delta.size(), b.delta.size());
  ASSERT_EQ(a.kv.size(), b.kv.size());
  for (std::size_t i = 0; i < a.delta.size(); ++i) {
    EXPECT_FALSE(a.delta[i].s.empty());
    EXPECT_TRUE(same(a.delta[i].s, b.delta[i].s)) << "S of layer " << i;
    EXPECT_TRUE(same(a.delta[i].conv, b.delta[i].conv)) << "conv of layer " << i;
  }
  for (std::size_t i = 0; i < a.kv.size(); ++i) {
    EXPECT_TRUE(same(a.kv[i].k, b.kv[i].k) && same(a.kv[i].v, b.kv[i].v)) << "kv of layer " << i;
  }
}

std::vector<std::int32_t> random_tokens(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> tokens(n);
  for (std::int32_t& t : tokens) t = static_cast<std::int32_t>(random() % 300);
  return tokens;
}

// A backend with the toy on it, and a sequence in each slot.
struct Toy {
  explicit Toy(int threads = 1, const std::string& isa = "", const test::ToySizes& with = {})
      : sizes(with), backend({threads, isa}) {
    backend.prepare(test::toy_model(sizes), test::toy_state(sizes), {});
    for (std::int32_t i = 0; i < sizes.slots; ++i) {
      Sequence s;
      s.slot = i;
      // pages of a slot are scattered over the pool
      for (std::int32_t p = 0; p < kPagesEach; ++p)
        s.pages.push_back(p * sizes.slots + (i * 3 + p) % sizes.slots);
      sequences.push_back(s);
    }
  }

  Sequence& at(std::int32_t slot) { return sequences[static_cast<std::size_t>(slot)]; }
  Logits run(std::size_t program, const BatchBuilder& builder) {
    return test::run_for_logits(backend, program, builder.batch, out);
  }
  std::vector<float> prefill(std::int32_t slot, const std::vector<std::int32_t>& tokens) {
    BatchBuilder b;
    b.add(Section::prefill, at(slot), tokens, tokens.size() - 1);
    return run(test::kMixed, b).at(0);
  }
  std::vector<float> decode(std::int32_t slot, std::int32_t token, std::int32_t keep = -1) {
    BatchBuilder b;
    b.add(Section::decode, at(slot), {token}, 0, keep);
    return run(test::kDecode, b).at(0);
  }
  HostState state(std::int32_t slot, std::int32_t keep = -1) {
    const Sequence& s = at(slot);
    const std::int32_t kept = keep < 0 ? s.pending : keep;
    return backend.export_state(slot, kept, s.pages, s.length - s.pending + kept);
  }

  test::ToySizes sizes;
  CpuBackend backend;
  std::vector<Sequence> sequences;
  StepOutput out;
};

// Eight sequences; each joins at a step of its own with a prompt and then chooses its own tokens.
struct Plan {
  std::int64_t joins;
  std::size_t prompt, tokens;
  SampleParams sampling;
};

const std::vector<Plan>& plans() {
  static const std::vector<Plan> all = {
      {0, 5, 9, {}},
      {0, 150, 6, {.temperature = 0.9f, .seed = 3}},
      {1, 64, 12, {.repetition_penalty = 1.2f}},
      {2, 1, 20, {.temperature = 1.5f, .top_p = 0.9f, .repetition_penalty = 1.3f, .seed = 4}},
      {3, 65, 4, {}},
      {5, 127, 8, {.temperature = 0.6f, .top_k = 20, .seed = 5}},
      {9, 130, 5, {.temperature = 1, .min_p = 0.01f, .repetition_penalty = 0.9f, .seed = 6}},
      {12, 2, 7, {}},
  };
  return all;
}

struct Trace {
  std::vector<std::int32_t> tokens;
  Logits logits;
  HostState state;
};

void collect(Trace& trace, const Toy& toy, std::size_t output, const Logits& logits) {
  trace.tokens.push_back(toy.out.tokens[output]);
  trace.logits.push_back(logits[output]);
}

Trace alone(std::size_t i, Toy& toy) {
  const Plan& plan = plans()[i];
  Sequence& s = toy.at(2);
  s.sampling = plan.sampling;
  Trace trace;
  for (std::size_t step = 0; step < plan.tokens; ++step) {
    BatchBuilder b;
    const auto prompt = random_tokens(plan.prompt, static_cast<std::uint32_t>(i));
    if (step == 0) {
      b.add(Section::prefill, s, prompt, prompt.size() - 1);
    } else {
      b.add(Section::decode, s, {trace.tokens.back()}, 0);
    }
    collect(trace, toy, 0, toy.run(step == 0 ? test::kMixed : test::kDecode, b));
  }
  trace.state = toy.state(2);
  return trace;
}

// All of them, in mixed and decode steps; prompts come in chunks of 64 where there is no room.
std::vector<Trace> together(Toy& toy) {
  std::vector<Trace> traces(plans().size());
  std::vector<std::size_t> fed(plans().size());
  const auto done = [&](std::size_t i) { return traces[i].tokens.size() == plans()[i].tokens; };
  for (std::int64_t step = 0; step < 100; ++step) {
    BatchBuilder b;
    std::vector<std::size_t> who;
    bool prefills = false;
    for (std::size_t i = 0; i < plans().size(); ++i) {
      if (traces[i].tokens.empty() || done(i)) continue;
      b.add(Section::decode, toy.at(static_cast<std::int32_t>(i)), {traces[i].tokens.back()}, 0);
      who.push_back(i);
    }
    for (std::size_t i = 0; i < plans().size(); ++i) {
      if (plans()[i].joins > step || !traces[i].tokens.empty()) continue;
      Sequence& s = toy.at(static_cast<std::int32_t>(i));
      s.sampling = plans()[i].sampling;
      const auto prompt = random_tokens(plans()[i].prompt, static_cast<std::uint32_t>(i));
      const std::size_t chunk = step % 2 == 0 ? 64 : 128, rest = prompt.size() - fed[i];
      const std::size_t n = std::min(chunk, rest);
      const auto first = prompt.begin() + static_cast<std::ptrdiff_t>(fed[i]);
      b.add(Section::prefill, s, {first, first + static_cast<std::ptrdiff_t>(n)},
            n == rest ? n - 1 : n);
      fed[i] += n;
      if (n == rest) who.push_back(i);
      prefills = true;
    }
    if (b.batch.ranges.empty()) continue;
    const Logits logits = toy.run(prefills ? test::kMixed : test::kDecode, b);
    EXPECT_EQ(logits.size(), who.size());
    for (std::size_t o = 0; o < who.size(); ++o) {
      collect(traces[who[o]], toy, o, logits);
      if (done(who[o])) traces[who[o]].state = toy.state(static_cast<std::int32_t>(who[o]));
    }
  }
  return traces;
}

TEST(CpuSequences, JoiningAndLeavingIsLikeBeingAlone) {
  std::vector<Trace> expected;
  Toy single(1);
  for (std::size_t i = 0; i < plans().size(); ++i) {
    single.backend.reset_slot(2);
    const std::vector<std::int32_t> pages = single.at(2).pages;
    single.at(2) = {};
    single.at(2).slot = 2;
    single.at(2).pages = pages;
    expected.push_back(alone(i, single));
    EXPECT_EQ(expected.back().tokens.size(), plans()[i].tokens);
  }
  for (const Isa isa : available_isas()) {
    for (const int threads : {1, 2, 7}) {
      // more threads than cores are slow on a busy machine: once is enough
      if (threads == 7 && isa != available_isas().front()) continue;
      Toy toy(threads, isa_name(isa));
      const std::vector<Trace> got = together(toy);
      for (std::size_t i = 0; i < got.size(); ++i) {
        SCOPED_TRACE(std::string(isa_name(isa)) + ", " + std::to_string(threads) +
                     " threads, sequence " + std::to_string(i));
        EXPECT_EQ(got[i].tokens, expected[i].tokens);
        ASSERT_EQ(got[i].logits.size(), expected[i].logits.size());
        for (std::size_t t = 0; t < got[i].logits.size(); ++t) {
          EXPECT_TRUE(same(got[i].logits[t], expected[i].logits[t])) << "token " << t;
        }
        expect_same(got[i].state, expected[i].state);
      }
    }
  }
}

TEST(CpuSequences, TakingBackIsNeverHavingRun) {
  for (const int threads : {1, 2}) {
    Toy plain(threads), ahead(threads);
    const auto prompt = random_tokens(70, 1), tokens = random_tokens(12, 2);
    for (Toy* toy : {&plain, &ahead}) {
      toy->at(0).sampling.repetition_penalty = 1.5f;
      toy->prefill(0, prompt);
    }
    bool ran_ahead = false;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::vector<float> expected = plain.decode(0, tokens[i]);
      EXPECT_TRUE(same(ahead.decode(0, tokens[i], ran_ahead ? 0 : -1), expected)) << i;
      EXPECT_EQ(plain.out.tokens, ahead.out.tokens) << i;
      expect_same(plain.state(0), ahead.state(0));
      ran_ahead = i % 3 != 1;
      if (ran_ahead) {
        ahead.decode(0, 17);
        expect_same(plain.state(0), ahead.state(0, 0));
      }
    }
    // a prompt after a row that is taken back: the next turn of a conversation
    const auto turn = random_tokens(30, 3);
    BatchBuilder b;
    b.add(Section::prefill, ahead.at(0), turn, turn.size() - 1, 0);
    EXPECT_TRUE(same(ahead.run(test::kMixed, b).at(0), plain.prefill(0, turn)));
    EXPECT_EQ(plain.out.tokens, ahead.out.tokens);
    expect_same(plain.state(0), ahead.state(0));
  }
}

TEST(CpuSequences, VerifiedRowsAreThoseOfDecoding) {
  for (const int threads : {1, 2}) {
    for (std::int32_t accepted = 1; accepted <= 4; ++accepted) {
      Toy plain(threads), drafted(threads);
      const auto prompt = random_tokens(61, 3), tokens = random_tokens(8, 4);
      const auto wrong = random_tokens(4, 5);
      for (Toy* toy : {&plain, &drafted}) {
        toy->at(1).sampling = {.temperature = 0.8f, .repetition_penalty = 1.4f, .seed = 8};
        toy->prefill(1, prompt);
        toy->decode(1, tokens[0]);
      }
      // `accepted` good rows, then wrong ones, up to 4
      std::vector<std::int32_t> rows(tokens.begin() + 1, tokens.begin() + 1 + accepted);
      rows.insert(rows.end(), wrong.begin(), wrong.begin() + (4 - accepted));
      BatchBuilder b;
      b.add(Section::verify, drafted.at(1), rows, 0);
      const Logits verified = drafted.run(test::kVerify, b);
      const StepOutput chosen = drafted.out;
      for (std::size_t i = 0; i < static_cast<std::size_t>(accepted); ++i) {
        EXPECT_TRUE(same(plain.decode(1, tokens[1 + i]), verified.at(i))) << accepted << " " << i;
        EXPECT_EQ(plain.out.tokens[0], chosen.tokens[i]) << accepted << " " << i;
      }
      expect_same(plain.state(1), drafted.state(1, accepted));
      // and on from there, with one more verify and a decode
      const std::int32_t next = tokens[static_cast<std::size_t>(accepted) + 1];
      EXPECT_TRUE(same(plain.decode(1, next), drafted.decode(1, next, accepted)));
      EXPECT_EQ(plain.out.tokens, drafted.out.tokens);
      expect_same(plain.state(1), drafted.state(1));
    }
  }
}

TEST(CpuSequences, ASnapshotGoesBackAndElsewhere) {
  Toy toy(2);
  Sequence& s = toy.at(4);
  s.sampling = {.temperature = 0.7f, .repetition_penalty = 1.6f, .seed = 2};
  toy.prefill(4, random_tokens(100, 6));
  const auto tokens = random_tokens(9, 7);
  for (std::size_t i = 0; i < 3; ++i) toy.decode(4, tokens[i]);
  toy.decode(4, 211);  // this row is not kept by the snapshot
  const auto snapshot = toy.backend.save_slot(4, 0);
  EXPECT_GT(snapshot->bytes(), 4u * 32 * 32 * sizeof(float));
  Sequence mark = s;
  --mark.length;
  mark.tokens.pop_back();
  mark.pending = 0;
  const auto go_on = [&](std::int32_t slot) {
    Logits logits;
    std::vector<std::int32_t> chosen;
    for (std::size_t i = 3; i < tokens.size(); ++i) {
      logits.push_back(toy.decode(slot, tokens[i]));
      chosen.push_back(toy.out.tokens[0]);
    }
    return std::pair(logits, chosen);
  };
  // a run that never fed 211
  Toy plain(1);
  plain.at(4).sampling = s.sampling;
  plain.prefill(4, random_tokens(100, 6));
  for (std::size_t i = 0; i < 3; ++i) plain.decode(4, tokens[i]);
  Logits expected;
  std::vector<std::int32_t> chosen;
  for (std::size_t i = 3; i < tokens.size(); ++i) {
    expected.push_back(plain.decode(4, tokens[i]));
    chosen.push_back(plain.out.tokens[0]);
  }
  for (const std::int32_t slot : {4, 4, 6}) {  // twice in place, then in a slot of another sequence
    toy.backend.load_slot(slot, *snapshot);
    const std::int32_t at = slot;
    toy.at(slot) = mark;
    toy.at(slot).slot = at;
    const auto [logits, tokens_chosen] = go_on(slot);
    ASSERT_EQ(logits.size(), expected.size());
    for (std::size_t i = 0; i < logits.size(); ++i) EXPECT_TRUE(same(logits[i], expected[i])) << i;
    EXPECT_EQ(tokens_chosen, chosen);
    expect_same(toy.state(slot), plain.state(4));
  }
}

TEST(CpuSequences, AResetSlotIsNew) {
  Toy toy(1), fresh(1);
  const auto prompt = random_tokens(40, 8);
  toy.at(3).sampling.repetition_penalty = fresh.at(3).sampling.repetition_penalty = 2;
  toy.prefill(3, random_tokens(90, 9));
  toy.decode(3, 5);
  toy.backend.reset_slot(3);
  Sequence blank;
  blank.slot = 3;
  blank.pages = toy.at(3).pages;
  blank.sampling = toy.at(3).sampling;
  toy.at(3) = blank;
  EXPECT_TRUE(same(toy.prefill(3, prompt), fresh.prefill(3, prompt)));
  EXPECT_EQ(toy.out.tokens, fresh.out.tokens);
  EXPECT_TRUE(same(toy.decode(3, 1), fresh.decode(3, 1)));
  expect_same(toy.state(3), fresh.state(3));
}

TEST(CpuSequences, ScoresAreTheLogitsOfEveryRow) {
  Toy scoring(2), stepping(1);
  const auto tokens = random_tokens(80, 10);
  BatchBuilder b;
  b.add(Section::prefill, scoring.at(0), tokens, 0);
  b.batch.sampling.clear();
  b.batch.targets.assign(tokens.begin() + 1, tokens.end());
  b.batch.targets.push_back(9);
  const Logits logits = scoring.run(test::kScore, b);
  ASSERT_EQ(logits.size(), tokens.size());
  ASSERT_EQ(scoring.out.logprobs.size(), tokens.size());
  EXPECT_TRUE(scoring.out.tokens.empty());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    double sum = 0;
    for (const float z : logits[i]) sum += std::exp(static_cast<double>(z));
    const auto target = static_cast<std::size_t>(b.batch.targets[i]);
    EXPECT_NEAR(scoring.out.logprobs[i], static_cast<double>(logits[i][target]) - std::log(sum),
                1e-5);
  }
  EXPECT_TRUE(same(stepping.prefill(0, tokens), logits.back()));
}

// Models of one kind of layer only.
TEST(CpuSequences, OneKindOfLayerIsEnough) {
  for (const bool attention : {false, true}) {
    test::ToySizes sizes;
    sizes.has_attention = attention;
    sizes.has_delta = !attention;
    Toy toy(2, "", sizes), single(1, "", sizes);
    toy.prefill(0, random_tokens(30, 1));
    const auto prompt = random_tokens(66, 2);
    EXPECT_TRUE(same(toy.prefill(1, prompt), single.prefill(5, prompt)));
    EXPECT_TRUE(same(toy.decode(1, 8), single.decode(5, 8)));
    const HostState state = toy.state(1);
    EXPECT_EQ(state.kv.size(), attention ? 1u : 0u);
    EXPECT_EQ(state.delta.size(), attention ? 0u : 1u);
  }
}

}  // namespace
}  // namespace nibble::cpu
