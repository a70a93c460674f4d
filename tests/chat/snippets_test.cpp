// snippets_test.cpp: short templates on the language's corners. What each renders, or the line on
// which it fails, was recorded from the reference implementation of Jinja (3.1.6, in the
// environment that template.h describes).
#include <gtest/gtest.h>

#include "nibble/error.h"
#include "tests/chat/support.h"

namespace nibble {
namespace {

constexpr const char* kInput =
    R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}],
        "bos_token": "<s>", "x": 5})";

TEST(ChatSnippets, RenderOrFailAsTheReference) {
  const auto snippets = test::read_lines("chat/snippets.jsonl");
  const Json input = Json::parse(kInput, "input");
  std::size_t rendered = 0, failed = 0;
  for (const Json& s : snippets) {
    const std::string source = s.find("template")->as_string();
    std::string text, error;
    try {
      text = ChatTemplate(source, "t").render(input, test::fixed_clock());
    } catch (const Error& e) {
      error = e.what();
    }
    if (const Json* expected = s.find("rendered")) {
      ++rendered;
      EXPECT_EQ(error, "") << source;
      EXPECT_EQ(text, expected->as_string()) << source;
      continue;
    }
    ++failed;
    ASSERT_NE(error, "") << source << "\nrendered " << text;
    if (const Json* line = s.find("line"); line->is_integer()) {
      const std::string start = "t: line " + std::to_string(line->as_int()) + ": ";
      EXPECT_TRUE(error.starts_with(start)) << source << "\n" << error << "\nexpected " << start;
    }
  }
  EXPECT_EQ(rendered, 125u);
  EXPECT_EQ(failed, 127u);
}

// What the reference does not say: numbers have 64 bits here, and errors name what was found.
TEST(ChatSnippets, Own) {
  EXPECT_EQ(test::render("{{ x }}", R"({"x": 18446744073709551615})"), "18446744073709551615");
  EXPECT_EQ(test::render("{{ x | tojson }}", R"({"x": -9223372036854775808})"),
            "-9223372036854775808");
  EXPECT_NE(test::failure("{{ 9223372036854775807 + 1 }}").find("integer overflow"),
            std::string::npos);
  EXPECT_NE(test::failure("{{ -9223372036854775808 // -1 }}").find("integer overflow"),
            std::string::npos);
  EXPECT_EQ(test::render("{{ -9223372036854775808 % -1 }}"), "0");
  EXPECT_NE(test::failure("{{ 2 ** 63 }}").find("integer overflow"), std::string::npos);
  EXPECT_EQ(test::render("{{ 2 ** 62 }}"), "4611686018427387904");
  EXPECT_EQ(
      test::failure("{{ 'a' + 1 }}"),
      "t: line 1: unsupported operand types for +: str and int; ~ joins any two values as text");
  EXPECT_EQ(test::failure("{% include 'other' %}"),
            "t: line 1: 'include' needs another template, and a chat template stands alone");
  EXPECT_NE(test::failure("{{ \xFF }}").find("UTF-8"), std::string::npos);
}

TEST(ChatSnippets, InputIsAnObject) {
  EXPECT_THROW(ChatTemplate("a", "t").render(Json(Json::Array())), Error);
  Json input = Json(Json::Object());
  input.set("x", Json("\xFF"));
  EXPECT_NE(test::failure("{{ x }}", input, {}).find("UTF-8"), std::string::npos);
  EXPECT_EQ(ChatTemplate("{{ y is defined }}", "t").render(input), "False");
}

TEST(ChatSnippets, GenerationCountsCodePoints) {
  std::vector<std::pair<std::size_t, std::size_t>> ranges = {{9, 9}};
  RenderOptions how;
  how.generation = &ranges;
  const ChatTemplate in_macro(
      "{% macro turn(t) %}[é]{% generation %}{{ t }}{% endgeneration %}.{% endmacro %}"
      "日{{ turn('ab') }}{{ turn('😀') }}{% generation %}{% endgeneration %}",
      "t");
  EXPECT_EQ(in_macro.render(Json(Json::Object()), how), "日[é]ab.[é]😀.");
  const std::vector<std::pair<std::size_t, std::size_t>> expected = {{4, 6}, {10, 11}, {12, 12}};
  EXPECT_EQ(ranges, expected);
}

}  // namespace
}  // namespace nibble
