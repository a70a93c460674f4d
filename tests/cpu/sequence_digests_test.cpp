// The CPU's delta net and attention against digests of what a card computed for the same scripts
// (tests/data/digests/ops.sequence.txt). All of them; with sanitizers those of up to kMostRows rows.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/cases/sequence_digests.h"
#include "tests/support/sanitized.h"

namespace nibble::test {
namespace {

constexpr std::int32_t kMostRows = kSanitized ? 17 : 1024;

DigestFile file() { return DigestFile(std::filesystem::path(NIBBLE_TEST_DATA) / "digests" / kSequenceDigests); }

std::vector<std::string> groups() {
  std::vector<std::string> all;
  for (const SequenceCase& c : sequence_cases()) {
    if (std::find(all.begin(), all.end(), c.group()) == all.end()) all.push_back(c.group());
  }
  return all;
}

class SequenceDigests : public testing::TestWithParam<std::string> {};

TEST_P(SequenceDigests, CpuReproducesTheCard) {
  const DigestFile known = file();
  int computed = 0;
  for (const SequenceCase& c : sequence_cases()) {
    if (c.group() != GetParam() || c.rows > kMostRows) continue;
    ++computed;
    EXPECT_EQ(known.fault(c.key(), sequence_digest<DeltaOnCpu, AttentionOnCpu>(c)), "");
  }
  RecordProperty("cases", computed);
  EXPECT_GE(computed, 14);
}

INSTANTIATE_TEST_SUITE_P(All, SequenceDigests, testing::ValuesIn(groups()),
                         [](const auto& tested) { return tested.param; });

TEST(SequenceDigestFile, HasEveryCaseAndNoOther) {
  std::vector<std::string> table;
  for (const SequenceCase& c : sequence_cases()) table.push_back(c.key());
  for (const std::string& fault : file().faults(table)) ADD_FAILURE() << fault;
}

}  // namespace
}  // namespace nibble::test
