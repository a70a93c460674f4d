#include "core/base/json.h"

#include <gtest/gtest.h>

#include "nibble/error.h"

namespace nibble {
namespace {

std::string complaint(const std::string& text) {
  try {
    Json::parse(text, "x.json");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Json, ReadsEveryKind) {
  const Json v = Json::parse(R"({"b": [1, -2, 2.5, true, null, "é\u00e9"], "a": 18446744073709551615})", "x");
  ASSERT_TRUE(v.is_object());
  EXPECT_EQ(v.as_object()[0].first, "b");  // file order
  EXPECT_EQ(v.find("b")->as_array()[1].as_int(), -2);
  EXPECT_EQ(v.find("b")->as_array()[5].as_string(), "éé");
  EXPECT_EQ(v.find("a")->as_uint(), 18446744073709551615u);
  EXPECT_EQ(v.dump(), R"({"b": [1, -2, 2.5, true, null, "éé"], "a": 18446744073709551615})");
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* text : {"", " ", "{", "[1,]", "{'a': 1}", "NaN", "1e999", "{} {}", "// c\n{}",
                           "\xEF\xBB\xBF{}", "\"\xFF\"", "False"}) {
    EXPECT_NE(complaint(text).find("x.json"), std::string::npos) << text;
    EXPECT_NE(complaint(text).find("JSON"), std::string::npos) << text << complaint(text);
  }
  EXPECT_NE(complaint("{\"a\": 1, \"a\": 2}").find("duplicate key"), std::string::npos);
  EXPECT_NE(complaint(std::string(100000, '[')).find("nested deeper"), std::string::npos);
  EXPECT_EQ(Json::parse("{\"a\": 1, \"a\": 2}", "x", {.allow_duplicate_keys = true}).find("a")->as_int(), 2);
}

TEST(JsonView, NamesThePathAndBothSides) {
  const Json v = Json::parse(R"({"t": {"n": "256", "f": 1.5, "big": 18446744073709551872}})", "c.json");
  const JsonView t = JsonView(v, "c.json").object("t");
  const auto message = [&](auto f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message([&] { t.integer("n", 1, 9); }),
            "c.json: t.n: expected an integer from 1 to 9, found string \"256\"");
  EXPECT_EQ(message([&] { t.integer("x", 1, 9); }), "c.json: t.x: missing");
  EXPECT_NE(message([&] { t.integer("big", 1, 9); }), "");
  EXPECT_EQ(message([&] { t.number("f", 2, 3); }), "c.json: t.f: expected a number from 2 to 3, found number 1.5");
  EXPECT_EQ(t.integer_or("absent", 7, 1, 9), 7);
}

}  // namespace
}  // namespace nibble
