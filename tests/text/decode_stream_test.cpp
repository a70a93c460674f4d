#include "core/text/decode_stream.h"

#include <gtest/gtest.h>

#include "nibble/error.h"
#include "tests/text/tokenizer_data.h"

namespace nibble::test {
namespace {

const std::string kBroken = "\uFFFD";

std::string repaired(std::initializer_list<std::string_view> pieces) {
  Utf8Repair repair;
  std::string text;
  for (const std::string_view piece : pieces) repair.push(piece, text);
  repair.flush(text);
  return text;
}

// Table 3-8 to 3-11 of the Unicode standard.
TEST(Utf8Repair, OneMarkForEachMaximalPart) {
  const std::string& r = kBroken;
  EXPECT_EQ(repaired({"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82"
                      "A"}),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(repaired({"\xED\xA0\x80\xED\xBF\xBF\xED\xAF"
                      "A"}),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(repaired({"\xF4\x91\x92\x93\xFF"
                      "A\x80\xBF"
                      "B"}),
            r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(repaired({"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"
                      "A"}),
            r + r + r + r + "A");
}

TEST(Utf8Repair, DoesNotDependOnTheCuts) {
  const std::string bytes =
      "a\xC3\xA9\xE1\x80\xE2\xF0\x91\x92\xF0\x9F\x98\x80\xED\xA0\x80\xF4\x91z\xE2\x82";
  const std::string whole = repaired({bytes});
  for (std::size_t i = 0; i <= bytes.size(); ++i) {
    for (std::size_t j = i; j <= bytes.size(); ++j) {
      const std::string_view v = bytes;
      EXPECT_EQ(repaired({v.substr(0, i), v.substr(i, j - i), v.substr(j)}), whole);
    }
  }
}

TEST(DecodeStream, WaitsForTheWholeCharacter) {
  const BpeTokenizer t = load_tokenizer("oracle");
  DecodeStream stream(t, false);
  EXPECT_EQ(stream.push(172), "");  // F0
  EXPECT_EQ(stream.push(253), "");  // 9F
  EXPECT_THROW(stream.push(1 << 20), Error);
  EXPECT_EQ(stream.push(246), "");  // 98
  EXPECT_EQ(stream.push(222), "\U0001F600");
  EXPECT_EQ(stream.push(172), "");
  EXPECT_EQ(stream.push(64), kBroken + "a");
  EXPECT_EQ(stream.push(172), "");
  EXPECT_EQ(stream.push(4093), kBroken + "<|im_end|>");
  EXPECT_EQ(stream.push(172), "");
  EXPECT_EQ(stream.flush(), kBroken);
  EXPECT_EQ(stream.flush(), "");
}

}  // namespace
}  // namespace nibble::test
