// cases_test.cpp: the handed templates with their renderings and errors, and the oracle model's
// own template.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "nibble/error.h"
#include "tests/chat/support.h"
#include "tests/support/mention.h"

namespace nibble {
namespace {

using Ranges = std::vector<std::pair<std::size_t, std::size_t>>;

TEST(ChatCases, Render) {
  const auto cases = test::read_lines("cases/templates/cases.jsonl");
  EXPECT_EQ(cases.size(), 113u);
  std::size_t with_generation = 0;
  for (const Json& c : cases) {
    const std::string id = c.find("id")->as_string();
    const std::string name = c.find("template")->as_string();
    const ChatTemplate chat(test::read_file("cases/templates/" + name), name);
    Ranges ranges;
    RenderOptions how = test::fixed_clock();
    how.generation = &ranges;
    try {
      EXPECT_EQ(chat.render(*c.find("input"), how), c.find("rendered")->as_string()) << id;
    } catch (const Error& e) {
      ADD_FAILURE() << id << ": " << e.what();
    }
    Ranges expected;
    if (const Json* g = c.find("generation"); g && g->is_array()) {
      ++with_generation;
      for (const Json& r : g->as_array()) {
        expected.emplace_back(r.as_array()[0].as_uint(), r.as_array()[1].as_uint());
      }
    }
    EXPECT_EQ(ranges, expected) << id;
  }
  EXPECT_GT(with_generation, 0u);
}

TEST(ChatCases, Fail) {
  const auto cases = test::read_lines("cases/templates/errors.jsonl");
  EXPECT_EQ(cases.size(), 10u);
  for (const Json& c : cases) {
    const std::string id = c.find("id")->as_string();
    const std::string name = c.find("template")->as_string();
    std::string message;
    ErrorCode code = ErrorCode::internal;
    try {
      ChatTemplate(test::read_file("cases/templates/" + name), name)
          .render(*c.find("input"), test::fixed_clock());
    } catch (const Error& e) {
      message = e.what();
      code = e.code();
    }
    const bool parsing = c.find("stage")->as_string() == "parse";
    EXPECT_EQ(code, parsing ? ErrorCode::bad_file : ErrorCode::invalid_argument) << id;
    std::vector<std::string> lines = {name + ": line " + std::to_string(c.find("line")->as_int()) +
                                      ": "};
    for (const Json& l : c.find("also")->as_array()) {
      lines.push_back(name + ": line " + std::to_string(l.as_int()) + ": ");
    }
    EXPECT_TRUE(std::any_of(lines.begin(), lines.end(),
                            [&](const std::string& l) { return message.starts_with(l); }))
        << id << ": " << message;
    std::vector<std::string> words;
    for (const Json& w : c.find("mention")->as_array()) words.push_back(w.as_string());
    EXPECT_TRUE(test::mentions(message, name, words)) << id << ": " << message;
  }
}

TEST(ChatCases, OracleTemplate) {
  const Json golden = Json::parse(test::read_file("golden/tokenizer.json"), "tokenizer.json");
  const ChatTemplate chat(test::read_file("model/hf-nvfp4-ct/chat_template.jinja"),
                          "chat_template.jinja");
  std::size_t rendered = 0, refused = 0;
  for (const Json& c : golden.find("templates")->as_array()) {
    EXPECT_EQ(chat.render(c), c.find("rendered")->as_string());
    ++rendered;
  }
  for (const Json& c : golden.find("template_errors")->as_array()) {
    std::string message;
    try {
      chat.render(c);
    } catch (const Error& e) {
      message = e.what();
    }
    EXPECT_NE(message.find(c.find("error")->as_string()), std::string::npos) << message;
    ++refused;
  }
  EXPECT_EQ(rendered, 7u);
  EXPECT_EQ(refused, 1u);
}

}  // namespace
}  // namespace nibble
