// The stages of the tokenizer, one by one.
#include <gtest/gtest.h>
#include <utf8proc.h>

#include <chrono>
#include <cstdlib>

#include "core/text/byte_level.h"
#include "core/text/normalizer.h"
#include "core/text/pre_tokenizer.h"
#include "core/text/regex_syntax.h"
#include "core/text/unicode.h"
#include "nibble/error.h"

namespace nibble {
namespace {

using Pieces = std::vector<std::string>;

// Splits by one Split step, before a ByteLevel that cuts no further.
Pieces split(const std::string& text, const Json& pattern, const char* behavior,
             bool invert = false) {
  Json step = Json::parse(R"({"type": "Split"})", "step");
  step.set("pattern", pattern);
  step.set("behavior", Json(behavior));
  step.set("invert", Json(invert));
  Json root = Json::parse(R"({"pre_tokenizer": {"type": "Sequence"}})", "root");
  Json sequence = *root.find("pre_tokenizer");
  const Json last = Json::parse(
      R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})", "last");
  sequence.set("pretokenizers", Json(Json::Array{step, last}));
  root.set("pre_tokenizer", sequence);
  const PreTokenizer splitter(JsonView(root, "tokenizer.json"));
  Matcher matcher(text.size());
  Pieces pieces;
  splitter.split(text, matcher, [&](std::string_view p) { pieces.emplace_back(p); });
  return pieces;
}

Pieces split_regex(const std::string& text, const char* pattern,
                   const char* behavior = "Isolated") {
  return split(text, Json(Json::Object{{"Regex", Json(pattern)}}), behavior);
}

// The examples of the format's documentation.
TEST(PreTokenizer, Behaviors) {
  const std::string text = "the-final--countdown";
  EXPECT_EQ(split_regex(text, "-", "Removed"), (Pieces{"the", "final", "countdown"}));
  EXPECT_EQ(split_regex(text, "-", "Isolated"),
            (Pieces{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(split_regex(text, "-", "MergedWithPrevious"),
            (Pieces{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(split_regex(text, "-", "MergedWithNext"), (Pieces{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(split_regex(text, "-", "Contiguous"), (Pieces{"the", "-", "final", "--", "countdown"}));
}

TEST(PreTokenizer, StringsInvertedAndEmptyMatches) {
  const Json dot(Json::Object{{"String", Json("a.")}});
  EXPECT_EQ(split("aba.c", dot, "Isolated"), (Pieces{"ab", "a.", "c"}));
  const Json word(Json::Object{{"Regex", Json("\\w+")}});
  EXPECT_EQ(split("ab, cd", word, "Removed", true), (Pieces{"ab", "cd"}));
  EXPECT_EQ(split_regex("aéb", ""), (Pieces{"a", "é", "b"}));
  EXPECT_EQ(split_regex("xaay", "a*"), (Pieces{"x", "aa", "y"}));
}

TEST(Regex, MeansWhatOnigurumaMeans) {
  const auto whole = [](const std::string& text, const char* pattern) {
    return split_regex("<" + text + ">", pattern) == Pieces{"<", text, ">"};
  };
  EXPECT_TRUE(whole("\u00A0\u3000\u0085", "\\s+"));
  EXPECT_FALSE(whole("\u180E", "\\s"));  // PCRE2 alone would take it
  EXPECT_TRUE(whole("\u180E", "[^<>\\s]"));
  EXPECT_TRUE(whole("e\u0301\u203F9", "\\w+"));
  EXPECT_FALSE(whole("\u00B2", "\\w"));  // no decimal digit
  EXPECT_TRUE(whole("日", "\\p{Han}"));
  EXPECT_FALSE(whole("、", "\\p{Han}"));  // only in its script extensions
  EXPECT_TRUE(whole("日本", "[\\p{Han}]+"));
  EXPECT_TRUE(whole("Ab", "\\p{Letter}+"));
  EXPECT_TRUE(whole("7f", "\\h+"));
  EXPECT_TRUE(whole("\v", "\\v"));
  EXPECT_FALSE(whole("\u2028", "\\v"));
  EXPECT_TRUE(whole("aa", "a{,2}"));
  EXPECT_TRUE(whole("a{", "a{"));
  EXPECT_TRUE(whole("é", "\\u00E9"));
  EXPECT_TRUE(whole("é", "\\x{e9}"));
  EXPECT_TRUE(whole("\u017F", "(?i:s)"));  // long s
  EXPECT_TRUE(whole("S", "(?i)s"));
  EXPECT_EQ(split_regex("a\nb", "^."), (Pieces{"a", "\n", "b"}));
  EXPECT_EQ(split_regex("ab cd", "\\b"), (Pieces{"ab", " ", "cd"}));
}

TEST(Regex, RefusesByName) {
  const auto complaint = [](const char* pattern) -> std::string {
    try {
      to_pcre2_syntax(pattern, "x.json");
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  for (const char* pattern :
       {"(?<n>a)", "(a)\\1", "\\k<n>", "[a&&b]", "[[:alpha:]]", "[a[b]]", "a{1,2}+", "a{2}?",
        "(*FAIL)", "(?m)a", "\\R", "\\xE9", "\\pL", "[\\W]"}) {
    EXPECT_NE(complaint(pattern).find("not supported"), std::string::npos) << pattern;
    EXPECT_NE(complaint(pattern).find("x.json: regex"), std::string::npos) << pattern;
  }
  EXPECT_EQ(complaint("[\\p{L}\\s&-]{1,3}(?!\\S)"), "");
}

TEST(Regex, BacktrackingWithoutEndIsAnError) {
  const auto start = std::chrono::steady_clock::now();
  const std::string many(60, 'a');
  EXPECT_THROW(split_regex(many + "b", "(a+)+$"), Error);
  EXPECT_THROW(split_regex(many + "bc", "(a|aa)+c"), Error);
  // Quadratic: every position walks to the end. Either answer will do, in time.
  const std::string longer(300'000, 'a');
  try {
    split_regex(longer, "a*[bc]|a");
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("regex"), std::string::npos);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
}

TEST(Normalizer, Examples) {
  using Form = Normalizer::Form;
  EXPECT_EQ(normalized("e\u0301", Form::nfc), "\u00E9");
  EXPECT_EQ(normalized("\u1E0B\u0323", Form::nfc), "\u1E0D\u0307");
  EXPECT_EQ(normalized("\u212B", Form::nfc), "\u00C5");
  EXPECT_EQ(normalized("\u0958", Form::nfc), "\u0915\u093C");  // excluded from composition
  EXPECT_EQ(normalized("\u1112\u1161\u11AB", Form::nfc), "\uD55C");
  EXPECT_EQ(normalized("\uFB01", Form::nfc), "\uFB01");
  EXPECT_EQ(normalized("\uFB01\u00A0", Form::nfkc), "fi ");
  EXPECT_EQ(normalized("\u00E9\u1E9B\u0323", Form::nfd), "e\u0301\u017F\u0323\u0307");
  EXPECT_EQ(normalized("\u1E9B\u0323", Form::nfkd), "s\u0323\u0307");
  EXPECT_EQ(normalized("\u1E9B\u0323", Form::nfkc), "\u1E69");
}

// utf8proc's own mapping sorts and composes the whole string at once.
TEST(Normalizer, EqualsUtf8procInContext) {
  const utf8proc_option_t options[] = {
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE),
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE),
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT),
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT)};
  std::size_t tried = 0;
  for (char32_t c = 1; c < 0x20000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text = "e";
    append_utf8(text, c);
    text += "\u0327\u0301\u0323o";
    append_utf8(text, c);
    for (int form = 0; form < 4; ++form) {
      std::uint8_t* raw = nullptr;
      const auto n = utf8proc_map(reinterpret_cast<const std::uint8_t*>(text.data()),
                                  static_cast<utf8proc_ssize_t>(text.size()), &raw, options[form]);
      ASSERT_GE(n, 0);
      const std::string expected(reinterpret_cast<char*>(raw), static_cast<std::size_t>(n));
      std::free(raw);
      ASSERT_EQ(normalized(text, static_cast<Normalizer::Form>(form)), expected)
          << std::hex << static_cast<std::uint32_t>(c) << " form " << form;
      ++tried;
    }
  }
  EXPECT_EQ(tried, 4u * (0x20000 - 1 - 0x800));
}

TEST(Normalizer, LongRunsOfMarksInTime) {
  std::string text = "a";
  for (int i = 0; i < 100'000; ++i) text += "\u0301\u0323";
  const auto start = std::chrono::steady_clock::now();
  const std::string result = normalized(text, Normalizer::Form::nfc);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  EXPECT_TRUE(result.starts_with("\u1EA1\u0323"));
  EXPECT_TRUE(result.ends_with("\u0301"));
}

TEST(ByteLevel, AlphabetIsOneToOne) {
  std::string all;
  for (int b = 0; b < 256; ++b) all += byte_level_char(static_cast<std::uint8_t>(b));
  const auto back = byte_level_bytes(all);
  ASSERT_TRUE(back.has_value());
  ASSERT_EQ(back->size(), 256u);
  for (int b = 0; b < 256; ++b) {
    EXPECT_EQ(static_cast<unsigned char>((*back)[static_cast<std::size_t>(b)]), b);
  }
  EXPECT_EQ(byte_level_char(' '), "Ġ");
  EXPECT_EQ(byte_level_char('\n'), "Ċ");
  EXPECT_FALSE(byte_level_bytes("日").has_value());
  EXPECT_FALSE(byte_level_bytes("a b").has_value());
}

}  // namespace
}  // namespace nibble
