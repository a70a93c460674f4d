// Two steps in flight, the second one's tokens being what the first one samples.
#include <gtest/gtest.h>

#include <cstring>

#include "backends/cpu/cpu_backend.h"
#include "nibble/error.h"
#include "tests/backend/toy.h"

namespace nibble::cpu {
namespace {

using test::BatchBuilder;
using test::Sequence;

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing was thrown";
}

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

// Three sequences whose next token hangs on their counts.
struct Toy {
  Toy() {
    backend.prepare(test::toy_model(sizes), test::toy_state(sizes), {});
    BatchBuilder b;
    for (std::int32_t i = 0; i < 3; ++i) {
      Sequence& s = sequences.emplace_back();
      s.slot = i;
      s.pages = {2 * i, 2 * i + 1};
      s.sampling.temperature = 1.2f;
      s.sampling.repetition_penalty = 1.4f;
      s.sampling.seed = static_cast<std::uint64_t>(i);
      b.add(Section::prefill, s, {5 + i, 6, 7}, 2);
    }
    backend.run(test::kMixed, b.batch, out);
  }
  // The last sampled tokens' rows, by id or by reference.
  BatchBuilder decode(bool by_reference) {
    BatchBuilder b;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const auto o = static_cast<std::int32_t>(i);
      b.add(Section::decode, sequences[i], {by_reference ? Batch::from_output(o) : out.tokens[i]}, 0);
    }
    return b;
  }
  void resolve() {
    for (std::size_t i = 0; i < sequences.size(); ++i) sequences[i].tokens.back() = out.tokens[i];
  }
  HostState state(std::size_t i, std::int32_t keep) {
    const Sequence& s = sequences[i];
    return backend.export_state(s.slot, keep, s.pages, s.length - s.pending + keep);
  }

  test::ToySizes sizes;
  CpuBackend backend{{1, ""}};
  std::vector<Sequence> sequences;
  StepOutput out;
};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(CpuInFlight, AReferenceIsTheTokenItself) {
  Toy ahead, plain;
  ASSERT_EQ(ahead.out.tokens, plain.out.tokens);
  ahead.backend.start(test::kDecode, ahead.decode(false).batch, {});
  plain.backend.start(test::kDecode, plain.decode(false).batch, {});
  for (int step = 0; step < 20; ++step) {
    // Before the tokens are handed out here, behind that there.
    ahead.backend.start(test::kDecode, ahead.decode(true).batch, {});
    ahead.backend.finish(ahead.out);
    ahead.resolve();
    plain.backend.finish(plain.out);
    ASSERT_EQ(ahead.out.tokens, plain.out.tokens) << step;
    plain.backend.start(test::kDecode, plain.decode(false).batch, {});
    for (std::size_t i = 0; i < 3; ++i) {
      for (const std::int32_t keep : {0, 1}) {
        const HostState a = ahead.state(i, keep), b = plain.state(i, keep);
        EXPECT_TRUE(same(a.delta[0].s, b.delta[0].s) && same(a.kv[0].k, b.kv[0].k)) << step;
      }
    }
  }
  ahead.backend.finish(ahead.out);
  plain.backend.finish(plain.out);
  EXPECT_EQ(ahead.out.tokens, plain.out.tokens);
  EXPECT_EQ(ahead.backend.stats().steps, 22u);

  // A row of a referred token is taken back, with its count.
  BatchBuilder a, b;
  for (auto* side : {&ahead, &plain}) {
    BatchBuilder& builder = side == &ahead ? a : b;
    for (Sequence& s : side->sequences) builder.add(Section::prefill, s, {9, 8}, 1, 0);
    side->backend.run(test::kMixed, builder.batch, side->out);
  }
  EXPECT_EQ(a.batch.taken_back.size(), 3u);
  EXPECT_EQ(ahead.out.tokens, plain.out.tokens);
}

TEST(CpuInFlight, ReferencesThatNameNothingAreRefused) {
  Toy toy;
  const auto refused = [&](std::size_t program, const Batch& batch) {
    return refusal([&] { toy.backend.run(program, batch, toy.out); });
  };
  Toy other;  // its sequences are as many rows on
  BatchBuilder b = other.decode(true);
  b.batch.tokens[1] = Batch::from_output(3);
  expect_has(refused(test::kDecode, b.batch),
             "tokens[1]: expected 0 to 299 or an output of the step before, -3 to -1, found -4");
  BatchBuilder prompt;
  Sequence fresh;
  fresh.slot = 5;
  fresh.pages = {20};
  prompt.add(Section::prefill, fresh, {4, Batch::from_output(0)}, 1);
  expect_has(refused(test::kMixed, prompt.batch), "tokens[1]: expected 0 to 299 (an output of the step before only in a decode row), found -1");
  // A refused step is not the step before; one that samples nothing is.
  toy.backend.run(test::kDecode, toy.decode(true).batch, toy.out);
  BatchBuilder silent;
  fresh = {};
  fresh.slot = 5;
  fresh.pages = {20};
  silent.add(Section::prefill, fresh, {4, 5}, 2);
  toy.backend.run(test::kMixed, silent.batch, toy.out);
  expect_has(refused(test::kDecode, toy.decode(true).batch), "tokens[0]: expected 0 to 299 (the step before samples nothing), found -1");
}

TEST(CpuInFlight, TwoAtMost) {
  Toy toy;
  expect_has(refusal([&] { toy.backend.finish(toy.out); }), "expected a step in flight, found none");
  toy.backend.start(test::kDecode, toy.decode(true).batch, {});
  toy.backend.start(test::kDecode, toy.decode(true).batch, {});
  const BatchBuilder third = toy.decode(true);
  expect_has(refusal([&] { toy.backend.start(test::kDecode, third.batch, {}); }), "expected at most 2 steps in flight");
  StepOutput first, second;
  toy.backend.finish(first);
  toy.backend.finish(second);
  EXPECT_EQ(first.tokens.size(), 3u);
  EXPECT_EQ(second.tokens.size(), 3u);
  toy.backend.run(test::kDecode, third.batch, toy.out);  // the refused one still fits
  EXPECT_EQ(toy.out.tokens.size(), 3u);
}

}  // namespace
}  // namespace nibble::cpu
