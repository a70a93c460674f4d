// What the schedule promises, over many random mixes of sequences.
#include "core/schedule/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "core/state/state_layout.h"

namespace nibble {
namespace {

TEST(Schedule, KeepsItsPromises) {
  std::mt19937 random(1);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  std::vector<ScheduledRange> out;
  for (int round = 0; round < 5000; ++round) {
    std::vector<SequenceView> in;
    const int count = pick(0, 12);
    std::map<std::int32_t, SequenceView> by_id;
    for (int i = 0; i < count; ++i) {
      const bool decode = pick(0, 2) == 0;
      in.push_back({i, pick(0, 500), decode ? 1 : pick(1, 700), decode});
      by_id[i] = in.back();
    }
    const std::int64_t limit = 64 * pick(2, 20);
    schedule(in, {limit}, out);

    std::int64_t rows = 0, decodes = 0;
    std::map<std::int32_t, int> seen;
    Section last = Section::decode;
    for (const ScheduledRange& r : out) {
      const SequenceView& s = by_id.at(r.id);
      EXPECT_GE(r.section, last) << "sections are in order";
      last = r.section;
      EXPECT_EQ(seen[r.id]++, 0) << "a sequence has one range";
      EXPECT_GE(r.rows, 1);
      EXPECT_LE(r.rows, s.waiting);
      EXPECT_EQ(r.section == Section::decode, s.decode);
      EXPECT_EQ(r.completes, r.rows == s.waiting);
      if (!r.completes) {
        EXPECT_EQ((s.position + r.rows) % kPageTokens, 0) << "cut off the grid";
      }
      rows += r.rows;
      decodes += r.section == Section::decode;
    }
    EXPECT_LE(rows, limit);
    std::int64_t wanted = 0;
    for (const auto& s : in) wanted += s.decode;
    EXPECT_EQ(decodes, wanted) << "every decode is served";
    if (count > 0) {
      EXPECT_FALSE(out.empty()) << "somebody advances";
    }
  }
}

TEST(Schedule, FirstPromptFirst) {
  std::vector<ScheduledRange> out;
  const SequenceView in[] = {{7, 10, 1000, false}, {3, 0, 5, false}};
  schedule(in, {256}, out);
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0].id, 7);
  EXPECT_EQ(out[0].rows, 246);  // to position 256
  EXPECT_EQ(out[1].id, 3);
  EXPECT_EQ(out[1].rows, 5);
}

}  // namespace
}  // namespace nibble
