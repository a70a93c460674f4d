// The digests of tests/support/op_digests.h themselves: their values, and that each way to differ is found and named.
#include "tests/support/op_digests.h"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

namespace nibble::test {
namespace {

std::uint64_t digest_of(const std::vector<float>& values) {
  OpDigest digest;
  digest.add(values);
  return digest.value();
}

// The first two are the published values of FNV-1a for no bytes and for "a".
TEST(OpDigest, IsFnv1a) {
  OpDigest none, letter;
  EXPECT_EQ(digest_text(none.value()), "cbf29ce484222325");
  letter.add(std::vector<std::uint8_t>{'a'});
  EXPECT_EQ(digest_text(letter.value()), "af63dc4c8601ec8c");
  OpDigest bytes;  // 1.5f is 0x3FC00000
  bytes.add(std::vector<std::uint8_t>{0, 0, 0xC0, 0x3F});
  EXPECT_EQ(bytes.value(), digest_of({1.5f}));
}

TEST(OpDigest, TakesNanAsOneValueAndEveryOtherBit) {
  const float other_nan = num::bit_cast<float>(0xFFC12345u);
  EXPECT_EQ(digest_of({1, std::nanf(""), 2}), digest_of({1, other_nan, 2}));
  EXPECT_NE(digest_of({0.0f}), digest_of({-0.0f}));
  EXPECT_NE(digest_of({1, 2}), digest_of({2, 1}));
  for (int bit = 0; bit < 32; ++bit) {
    const float flipped = num::bit_cast<float>(num::bit_cast<std::uint32_t>(1.1f) ^ 1u << bit);
    EXPECT_NE(digest_of({flipped}), digest_of({1.1f})) << bit;
  }
}

class DigestFileText : public testing::Test {
 protected:
  static DigestFile file(const std::string& text) { return {"ops.txt", std::istringstream(text)}; }
  // What is wrong with a file for a table of `a` and `b`, in one text.
  static std::string faults(const std::string& text) {
    std::string all;
    for (const std::string& fault : file(text).faults({"a", "b"})) all += fault + "\n";
    return all;
  }
  const std::string a_ = digest_line("a", 1), b_ = digest_line("b", 0xFEDCBA9876543210u);
};

TEST_F(DigestFileText, HoldsWhatWasWritten) {
  EXPECT_EQ(b_, "b\tfedcba9876543210\n");
  EXPECT_EQ(faults(a_ + b_), "");
  EXPECT_EQ(file(a_ + b_).fault("b", 0xFEDCBA9876543210u), "");
  EXPECT_EQ(file(a_ + b_).fault("b", 2),
            "ops.txt: case \"b\": the card computed fedcba9876543210, this is 0000000000000002 "
            "(tools/gpu_check.sh --stage ops writes digest-ops.txt on a card)");
}

TEST_F(DigestFileText, NamesWhatIsMissingOrTooMuch) {
  const auto says = [](const std::string& found, const std::string& part) {
    EXPECT_NE(found.find(part), std::string::npos) << found;
    EXPECT_NE(found.find("tools/gpu_check.sh --stage ops writes"), std::string::npos) << found;
  };
  says(faults(a_), "lacks case \"b\"");
  says(file(a_).fault("b", 1), "lacks case \"b\"");
  says(faults(a_ + b_ + digest_line("c", 3)), "in no table: \"c\"");
  says(faults(a_ + b_ + a_), "has case \"a\" twice");
  says(faults(a_ + b_ + "c 0123456789abcdef\n"), "found \"c 0123456789abcdef\"");
  says(faults(a_ + "b\t0123\n"), "found \"b\t0123\"");
  says(faults(a_ + "b\tFEDCBA9876543210\n"), "lacks case \"b\"");
  EXPECT_EQ(file(a_ + b_).faults({"a", "b", "b"}).size(), 1u);
  const DigestFile none(std::filesystem::path("no/such/ops.txt"));
  says(none.faults({"a"}).at(0), "cannot be read");
}

}  // namespace
}  // namespace nibble::test
