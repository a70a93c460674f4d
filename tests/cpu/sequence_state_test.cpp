// Laws of the state: what was taken back has never been, a snapshot is the sequence, a verify is
// its decodes, and how a prompt is cut on the 64-grid changes no bit.
#include <limits>

#include "nibble/error.h"
#include "tests/cpu/sequence_world.h"

namespace nibble::test {
namespace {

const Shapes& shapes() {
  static const Shapes s = {
      .delta = {{2, 4, 32, 32, 4}, {1, 2, 24, 40, 3}}, .attention = {{4, 2, 32}}, .rotary = 8};
  return s;
}
const Constants& constants() {
  static const Constants c(shapes());
  return c;
}

void expect_equal_states(World& a, World& b, std::int32_t slot, std::int32_t keep_a,
                         std::int32_t keep_b, std::int64_t positions) {
  ASSERT_EQ(a.delta.cursors().position(slot, keep_a), positions);
  ASSERT_EQ(b.delta.cursors().position(slot, keep_b), positions);
  const auto x = a.delta.to_host(slot, keep_a, a.kernels()),
             y = b.delta.to_host(slot, keep_b, b.kernels());
  for (std::size_t i = 0; i < x.size(); ++i) {
    expect_bits(x[i].s, y[i].s, "S of layer " + std::to_string(i));
    expect_bits(x[i].conv, y[i].conv, "conv of layer " + std::to_string(i));
  }
  const auto u = a.kv.to_host(a.pages(slot), positions), v = b.kv.to_host(b.pages(slot), positions);
  for (std::size_t i = 0; i < u.size(); ++i) {
    expect_bits(u[i].k, v[i].k, "keys");
    expect_bits(u[i].v, v[i].v, "values");
  }
}

TEST(SequenceState, RowsTakenBackHaveNeverBeen) {
  for (std::int32_t keep = 0; keep <= 4; ++keep) {
    World with(shapes(), constants(), 2, isas_here().back(), 2),
        without(shapes(), constants(), 2, isas_here().back(), 1);
    with.step({move(Section::prefill, 1, 0, 70, 0, 1)});
    without.step({move(Section::prefill, 1, 0, 70, 0, 1)});
    with.step({move(Section::verify, 1, 70, 4, 0, 1)});  // four rows, `keep` of them stay
    for (std::int32_t i = 0; i < keep; ++i) {
      without.step({move(Section::decode, 1, 70 + i, 1, without.delta.cursors().pending(1), 1)});
    }
    expect_equal_states(with, without, 1, keep, without.delta.cursors().pending(1), 70 + keep);
    if (HasFatalFailure()) return;
    // and what comes after it is the same: first rows, then a prompt
    const std::int32_t pending = without.delta.cursors().pending(1);
    for (const auto& [section, rows] : {std::pair{Section::verify, 3}, {Section::prefill, 80}}) {
      const bool first = section == Section::verify;
      const std::int64_t start = 70 + keep + (first ? 0 : 2);
      const auto x = with.step({move(section, 1, start, rows, first ? keep : 2, 9)});
      const auto y = without.step({move(section, 1, start, rows, first ? pending : 2, 9)});
      for (std::size_t i = 0; i < x.size(); ++i)
        expect_same(x[i], y[i], "row " + std::to_string(i));
      if (HasFatalFailure()) return;
    }
    expect_equal_states(with, without, 1, 0, 0, 70 + keep + 2 + 80);
  }
}

TEST(SequenceState, VerifyRowsAreDecodeRows) {
  World together(shapes(), constants(), 1, isas_here().back(), 2),
      single(shapes(), constants(), 1, "portable", 1);
  std::vector<Out> want;
  for (std::int32_t p = 0; p < 80; ++p) {
    want.push_back(
        single.step({move(Section::decode, 0, p, 1, single.delta.cursors().pending(0), 3)}).front());
  }
  for (std::int32_t p = 0; p < 80; p += 4) {
    const auto got = together.step({move(Section::verify, 0, p, 4, together.delta.cursors().pending(0), 3)});
    for (std::int32_t i = 0; i < 4; ++i)
      expect_same(got[at(i)], want[at(p + i)], "position " + std::to_string(p + i));
    if (HasFatalFailure()) return;
  }
}

TEST(SequenceState, CutsOnTheGridChangeNoBit) {
  World whole(shapes(), constants(), 1, isas_here().back(), 2),
      cut(shapes(), constants(), 1, isas_here().back(), 1);
  const auto want = whole.step({move(Section::prefill, 0, 0, 301, 0, 4)});
  std::int32_t begin = 0;
  for (const std::int32_t end : {64, 192, 256, 301}) {
    const auto got = cut.step({move(Section::prefill, 0, begin, end - begin, 0, 4)});
    for (std::int32_t i = begin; i < end; ++i)
      expect_same(got[at(i - begin)], want[at(i)], "position " + std::to_string(i));
    if (HasFatalFailure()) return;
    begin = end;
  }
  expect_equal_states(whole, cut, 0, 0, 0, 301);
}

// Rows of every kind over several splits of 1,024, more parts than a wave holds.
TEST(SequenceState, AttentionOfARowIsTheSameInEverySection) {
  const Shapes s = {
      .attention = {{2, 1, 16}, {4, 2, 20}}, .rotary = 4, .positions = 2120, .records = 5};
  const Constants c(s);
  World prompt(s, c, 2, isas_here().back(), 2), steps(s, c, 2, isas_here().back(), 1);
  prompt.step({move(Section::prefill, 0, 0, 2064, 0, 6), move(Section::prefill, 1, 0, 1022, 0, 7)});
  steps.step({move(Section::prefill, 1, 0, 1022, 0, 7)});
  steps.step({move(Section::prefill, 0, 0, 1300, 0, 6)});
  steps.step({move(Section::prefill, 0, 1300, 764, 0, 6)});
  const auto want = prompt.step(
      {move(Section::prefill, 0, 2055, 14, 0, 6), move(Section::prefill, 1, 1022, 4, 0, 7)});
  const auto first = steps.step(
      {move(Section::decode, 0, 2055, 1, 0, 6), move(Section::verify, 1, 1022, 4, 0, 7)});
  expect_same(first[0], want[0], "decode at 2055");
  for (std::int32_t i = 0; i < 4; ++i)
    expect_same(first[at(1 + i)], want[at(14 + i)], "verify over the split's edge");
  const auto second = steps.step({move(Section::verify, 0, 2056, 5, 0, 6)});
  for (std::int32_t i = 0; i < 5; ++i)
    expect_same(second[at(i)], want[at(1 + i)], "verify " + std::to_string(i));
  if (HasFatalFailure()) return;
  // and one row of it against the text itself
  Alone alone(s, c);
  alone.skip_to(2060, 6);
  expect_same(want[5], alone.step(move(Section::prefill, 0, 2060, 1, 0, 6)).front(),
              "position 2060");
}

TEST(SequenceState, SnapshotsAreTheSequence) {
  World world(shapes(), constants(), 3, isas_here().back(), 2);
  for (const std::int32_t prompt :
       {0, 2, 66}) {  // also before the convolution has seen enough rows
    for (std::int32_t i = 0; i < 3; ++i) world.delta.reset(i);
    if (prompt > 0) world.step({move(Section::prefill, 0, 0, prompt, 0, 5)});
    world.step({move(Section::verify, 0, prompt, 3, 0, 5)});
    Floats bytes(static_cast<std::int64_t>(world.delta.snapshot_bytes() / 4));
    world.delta.save(0, 2, world.kernels(), bytes.bytes());
    world.step({move(Section::prefill, 2, 0, 5, 0, 8)});
    world.delta.load(2, bytes.bytes());
    EXPECT_EQ(world.delta.cursors().pending(2), 0);
    EXPECT_EQ(world.delta.cursors().position(2, 0), prompt + 2);
    const auto a = world.delta.to_host(0, 2, world.kernels()),
               b = world.delta.to_host(2, 0, world.kernels());
    for (std::size_t i = 0; i < a.size(); ++i) {
      expect_bits(b[i].s, a[i].s, "S");
      expect_bits(b[i].conv, a[i].conv, "conv");
    }
    const auto rows = world.step({move(Section::verify, 0, prompt + 2, 2, 2, 6),
                                  move(Section::verify, 2, prompt + 2, 2, 0, 6)});
    for (std::size_t r = 0; r < 2; ++r) {
      for (std::size_t i = 0; i < rows[r].delta.size(); ++i)
        expect_bits(rows[2 + r].delta[i], rows[r].delta[i], "rows after");
    }
    if (HasFatalFailure()) return;
  }
}

// Seen: 3.8e-8 of values up to 0.17.
TEST(SequenceState, ChunksAgreeWithTheRecurrenceWithinRounding) {
  World chunks(shapes(), constants(), 1, isas_here().back(), 2),
      steps(shapes(), constants(), 1, isas_here().back(), 2);
  const auto got = chunks.step({move(Section::prefill, 0, 0, 300, 0, 4)});
  double worst = 0, largest = 0;
  for (std::int32_t p = 0; p < 300; ++p) {
    const auto want =
        steps.step({move(Section::decode, 0, p, 1, steps.delta.cursors().pending(0), 4)}).front();
    for (std::size_t layer = 0; layer < want.delta.size(); ++layer) {
      for (std::size_t i = 0; i < want.delta[layer].size(); ++i) {
        worst =
            std::max(worst, std::fabs(double{got[at(p)].delta[layer][i]} - want.delta[layer][i]));
        largest = std::max(largest, std::fabs(double{want.delta[layer][i]}));
      }
    }
  }
  EXPECT_GT(worst, 0) << "the two are different orders of addition";
  EXPECT_LT(worst, 1e-7);
  EXPECT_GT(largest, 0.1);
}

TEST(SequenceState, RefusesWhatItCannotTake) {
  World world(shapes(), constants(), 2, "portable", 1);
  world.step({move(Section::prefill, 0, 0, 10, 0, 1)});
  world.step({move(Section::verify, 0, 10, 2, 0, 1)});
  const auto complaint = [&](const Move& m) -> std::string {
    try {
      world.step({m});
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      return e.what();
    }
    return "none";
  };
  EXPECT_NE(
      complaint(move(Section::decode, 0, 13, 1, 3, 1)).find("2 rows can be kept, asked to keep 3"),
      std::string::npos);
  EXPECT_NE(complaint(move(Section::decode, 0, 12, 1, -1, 1)).find("asked to keep -1"),
            std::string::npos);
  EXPECT_NE(complaint(move(Section::decode, 0, 12, 1, 1, 1))
                .find("its next position is 11, the batch says 12"),
            std::string::npos);
  EXPECT_NE(complaint(move(Section::verify, 0, 12, 5, 2, 1))
                .find("5 verify rows, but only 4 can be taken back"),
            std::string::npos);
  EXPECT_NE(complaint(move(Section::decode, 2, 0, 1, 0, 1)).find("expected a slot below 2, got 2"),
            std::string::npos);
  EXPECT_NE(complaint(move(Section::prefill, 1, 0, 400, 0, 1)).find("pages"), std::string::npos);
  Floats small(16);
  EXPECT_THROW(world.delta.save(0, 0, world.kernels(), small.bytes()), Error);
  EXPECT_THROW(world.delta.load(1, small.bytes()), Error);
  EXPECT_THROW(cpu::sequence_kernels("sse9"), Error);

  StateLayout huge;
  huge.delta.push_back({1 << 30, 1 << 30, 1 << 30, 1 << 30, 4});
  EXPECT_THROW(cpu::DeltaArena::bytes(huge, {}), Error);
  huge.attention.push_back({1 << 30, 1 << 30, 1 << 30});
  StateSizes sizes;
  sizes.pages = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW(cpu::KvArena::bytes(huge, sizes), Error);
  huge.delta = {{2, 3, 16, 16, 4}};
  EXPECT_THROW(cpu::DeltaArena::bytes(huge, {}), Error);
}

}  // namespace
}  // namespace nibble::test
