#include <gtest/gtest.h>

#include <random>

#include "core/engine/stop_text.h"
#include "core/state/page_pool.h"

namespace nibble {
namespace {

std::string run(const std::vector<std::string>& stops, const std::vector<std::string>& pieces, bool* stopped) {
  StopText s(stops);
  std::string out;
  *stopped = false;
  for (const std::string& piece : pieces) {
    if (s.push(piece, out)) {
      *stopped = true;
      return out;
    }
  }
  s.flush(out);
  return out;
}

TEST(StopText, AnyCutOfTheTextGivesTheSame) {
  std::mt19937 random(3);
  const std::vector<std::string> stops = {"abab", "ba ", "\n\n"};
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (int i = 0; i < 30; ++i) text += "ab \nc"[random() % 5];
    std::size_t first = std::string::npos;
    for (const auto& s : stops) first = std::min(first, text.find(s));
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t n = 1 + random() % 4;
      pieces.push_back(text.substr(at, n));
      at += n;
    }
    bool stopped;
    const std::string out = run(stops, pieces, &stopped);
    EXPECT_EQ(stopped, first != std::string::npos);
    if (!stopped) {
      EXPECT_EQ(out, text);
    } else {
      // A stop text that ends in an earlier piece wins over one that starts earlier.
      EXPECT_EQ(text.compare(0, out.size(), out), 0);
      bool at_stop = false;
      for (const auto& s : stops) at_stop = at_stop || text.compare(out.size(), s.size(), s) == 0;
      EXPECT_TRUE(at_stop) << text;
    }
  }
}

TEST(StopText, HoldsBackOnlyWhatMayBecomeAStop) {
  StopText s({"STOP"});
  std::string out;
  EXPECT_FALSE(s.push("hello ST", out));
  EXPECT_EQ(out, "hello ");
  EXPECT_FALSE(s.push("ART ", out));
  EXPECT_EQ(out, "hello START ");
  EXPECT_TRUE(s.push("STOP more", out));
  EXPECT_EQ(out, "hello START ");
}

TEST(PagePool, GrowsAllOrNothing) {
  PagePool pool(4);
  std::vector<std::int32_t> a, b;
  EXPECT_TRUE(pool.grow(a, 65));
  EXPECT_EQ(a.size(), 2u);
  EXPECT_FALSE(pool.grow(b, 193));
  EXPECT_TRUE(b.empty());
  EXPECT_TRUE(pool.grow(b, 128));
  EXPECT_EQ(pool.free_pages(), 0);
  EXPECT_TRUE(pool.grow(a, 128)) << "already covered";
  pool.shrink(a, 64);
  EXPECT_EQ(a.size(), 1u);
  EXPECT_EQ(pool.free_pages(), 1);
  pool.shrink(a, 0);
  EXPECT_EQ(pool.free_pages(), 2);
}

}  // namespace
}  // namespace nibble
