#include "tools/table.h"

#include <gtest/gtest.h>

#include "nibble/error.h"
#include "tools/units.h"

namespace nibble::tool {
namespace {

Table sample() {
  Table table({{"test"}, {"tokens/s", true}});
  table.add({"pp512", "1.5 ± 0.1"});
  table.add({"a|b, \"c\"\n", "100"});
  return table;
}

TEST(Table, MarkdownAlignsAndEscapes) {
  EXPECT_EQ(sample().markdown(),
            "| test       |  tokens/s |\n"
            "| ---------- | --------: |\n"
            "| pp512      | 1.5 ± 0.1 |\n"
            "| a\\|b, \"c\"  |       100 |\n");
}

TEST(Table, CsvQuotes) {
  EXPECT_EQ(sample().csv(), "test,tokens/s\npp512,1.5 ± 0.1\n\"a|b, \"\"c\"\" \",100\n");
}

TEST(Table, AlignedCountsCharactersNotBytes) {
  Table table({{"x", true}, {"y"}});
  table.add({"±", "a"});
  table.add({"10", "b"});
  EXPECT_EQ(table.aligned(), " x  y\n ±  a\n10  b\n");
}

TEST(Table, RefusesAWrongNumberOfCells) {
  Table table({{"x"}});
  EXPECT_THROW(table.add({"1", "2"}), Error);
}

TEST(Units, Numbers) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes((1 << 20) - 100), "1.00 MiB");  // not 1024 KiB
  EXPECT_EQ(format_bytes(812), "812 B");
  EXPECT_EQ(format_bytes(10115200), "9.65 MiB");
  EXPECT_EQ(format_bytes(std::uint64_t{17} << 30), "17.0 GiB");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(9940000), "9.94 M");
  EXPECT_EQ(format_count(27400000000), "27.4 B");
  EXPECT_EQ(format_seconds(0.00812), "8.12 ms");
  EXPECT_EQ(format_seconds(1.2), "1.20 s");
  EXPECT_EQ(format_rate(1234.5), "1234");
  EXPECT_EQ(format_rate(12.345), "12.35");
  EXPECT_EQ(format_rate(0), "0.000");
}

TEST(Units, LinesAreSafeOnATerminal) {
  EXPECT_EQ(one_line("a\nb\x1B[31mc\x7F"), "a b\\x1B[31mc\\x7F");
}

}  // namespace
}  // namespace nibble::tool
