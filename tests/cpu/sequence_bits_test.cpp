// Every row of random ragged batches, by bytes, against the plain reference that runs each sequence
// alone: decodes, verifies with rows taken back, prefills that start and end anywhere.
#include "core/numerics/philox.h"
#include "tests/cpu/sequence_world.h"

namespace nibble::test {
namespace {

struct Case {
  const char* name;
  Shapes shapes;
  int steps;
};

const std::vector<Case>& cases() {
  // DeltaShape {key heads, value heads, key dim, value dim, taps}; AttentionShape {heads, kv heads,
  // dim}
  static const std::vector<Case> all = {
      {"Tiny",
       {.delta = {{2, 4, 32, 32, 4}, {1, 1, 32, 32, 2}},
        .attention = {{4, 2, 64}, {4, 4, 64}},
        .rotary = 16},
       12},
      {"Real",
       {.delta = {{1, 3, 128, 128, 4}}, .attention = {{6, 1, 256}}, .rotary = 64, .records = 6},
       8},
      {"Tails",
       {.delta = {{2, 2, 20, 13, 3}, {1, 4, 7, 33, 4}},
        .attention = {{3, 1, 24}, {2, 2, 5}},
        .rotary = 4},
       12},
      {"Wide",
       {.delta = {{1, 2, 48, 144, 1}},
        .attention = {{9, 1, 80}, {7, 7, 16}},
        .rotary = 12,
        .records = 1},
       10},
      {"LongHeads",
       {.delta = {{1, 1, 544, 16, 4}}, .attention = {{1, 1, 528}}, .rotary = 2, .records = 3},
       6},
  };
  return all;
}

struct Schedule {
  std::vector<std::vector<Move>> steps;
  std::vector<std::vector<Out>> want;
};

constexpr std::int32_t kSlots = 4;

Schedule make_schedule(const Case& c, const Constants& constants, std::vector<Alone>& sequences) {
  std::uint64_t draw = 0;
  const auto pick = [&](std::int32_t n) {
    return static_cast<std::int32_t>(num::uniform(77, draw++, 0) * static_cast<float>(n));
  };
  for (std::int32_t i = 0; i < kSlots; ++i) sequences.emplace_back(c.shapes, constants);
  std::vector<std::int64_t> position(kSlots, 0);
  Schedule s;
  for (int step = 0; step < c.steps; ++step) {
    std::vector<Move> moves;
    for (std::int32_t slot = 0; slot < kSlots; ++slot) {
      if (step > 0 && pick(5) == 0) continue;
      constexpr std::int32_t kPrompt[] = {1, 2, 5, 37, 63, 64, 65, 130};
      const auto section = static_cast<Section>(step == 0 ? slot % 3 : pick(3));
      const std::int32_t pending = sequences[at(slot)].pending(), keep = pick(pending + 1);
      const std::int64_t start = position[at(slot)] - pending + keep;
      const std::int32_t rows = section == Section::decode   ? 1
                                : section == Section::verify ? 1 + pick(c.shapes.records)
                                                             : kPrompt[pick(8)];
      if (start + rows > c.shapes.positions) continue;
      position[at(slot)] = start + rows;
      // another seed each time: what was taken back is never computed again
      moves.push_back(move(section, slot, start, rows, keep, 1000 + draw));
    }
    std::stable_sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) {
      return a.range.section < b.range.section;
    });
    std::vector<Out> want;
    for (const Move& m : moves) {
      for (Out& o : sequences[at(m.range.slot)].step(m)) want.push_back(std::move(o));
    }
    s.steps.push_back(moves);
    s.want.push_back(want);
  }
  return s;
}

class SequenceBits : public testing::TestWithParam<int> {};

TEST_P(SequenceBits, EqualTheReferenceOnEveryInstructionSetAndThreadCount) {
  const Case& c = cases()[at(GetParam())];
  const Constants constants(c.shapes);
  std::vector<Alone> sequences;
  const Schedule schedule = make_schedule(c, constants, sequences);
  for (const std::string& isa : isas_here()) {
    for (const int threads : {1, 2, 7}) {
      if (isa != isas_here().back() && threads != 2) continue;
      World world(c.shapes, constants, kSlots, isa, threads);
      for (std::size_t step = 0; step < schedule.steps.size(); ++step) {
        const std::vector<Out> got = world.step(schedule.steps[step]);
        ASSERT_EQ(got.size(), schedule.want[step].size());
        std::size_t row = 0;
        for (const Move& m : schedule.steps[step]) {
          for (std::int32_t i = 0; i < m.range.rows; ++i, ++row) {
            expect_same(got[row], schedule.want[step][row],
                        isa + ", " + std::to_string(threads) + " threads, step " +
                            std::to_string(step) + ", slot " + std::to_string(m.range.slot) + " " +
                            section_name(m.range.section) + " row " + std::to_string(i) + " at " +
                            std::to_string(m.range.position + i) + ", keep " +
                            std::to_string(m.range.keep));
            if (HasFatalFailure()) return;
          }
        }
      }
      for (std::int32_t slot = 0; slot < kSlots; ++slot) {
        const Alone& alone = sequences[at(slot)];
        for (std::int32_t keep = 0; keep <= alone.pending(); ++keep) {
          const auto host = world.delta.to_host(slot, keep, world.kernels());
          const std::int64_t end = world.delta.cursors().position(slot, keep);
          for (std::size_t layer = 0; layer < host.size(); ++layer) {
            const std::string where = isa + ", state of slot " + std::to_string(slot) +
                                      " keeping " + std::to_string(keep);
            expect_bits(host[layer].s, alone.S(layer, keep), where);
            Row conv;
            for (std::int64_t ch = 0; ch < c.shapes.delta[layer].channels(); ++ch) {
              for (std::int64_t p = end - c.shapes.delta[layer].conv_kernel + 1; p < end; ++p) {
                conv.push_back(p < 0 ? 0.0f : alone.raw(layer)[at(p)][at(ch)]);
              }
            }
            expect_bits(host[layer].conv, conv, where);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SequenceBits, testing::Range(0, static_cast<int>(cases().size())),
                         [](const auto& test) {
                           return std::string(cases()[at(test.param)].name);
                         });

}  // namespace
}  // namespace nibble::test
