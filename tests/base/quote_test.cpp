#include "core/base/quote.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(Quote, MakesQuotesAndControlCharactersVisible) {
  EXPECT_EQ(in_quotes("a\"b\n"), "\"a\\\"b\\n\"");
}

TEST(Quote, CutsLongTextsBetweenCharacters) {
  EXPECT_EQ(in_quotes(std::string(80, 'a')), "\"" + std::string(80, 'a') + "\"");
  EXPECT_EQ(in_quotes(std::string(100'000, 'a')), "\"" + std::string(80, 'a') + "...\"");
  EXPECT_EQ(in_quotes("abcdef", 3), "\"abc...\"");
  EXPECT_EQ(in_quotes("ab\u20ac\u20ac", 4), "\"ab...\"");  // three bytes each
  EXPECT_EQ(in_quotes(std::string(5000, 'p'), kShownPath), "\"" + std::string(4096, 'p') + "...\"");
}

}  // namespace
}  // namespace nibble
