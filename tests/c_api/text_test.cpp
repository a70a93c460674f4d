// Tokens, text and chat through the C ABI.
#include "fixture.h"

namespace nibble::test {
namespace {

TEST_F(CApi, TextGoesThereAndBack) {
  const std::string text = "日本語: France = フランス 😀 naïve\n\n  x = 1";
  const std::vector<std::int32_t> tokens = ids(text);
  ASSERT_GT(tokens.size(), 10u);
  char* back = nullptr;
  std::size_t length = 0;
  ASSERT_EQ(nibble_detokenize(model_.get(), tokens.data(), tokens.size(), 0, &back, &length),
            NIBBLE_OK);
  EXPECT_EQ(length, text.size());
  EXPECT_EQ(take(back), text);
}

TEST_F(CApi, TextMayHoldAZeroByteOrNothing) {
  const std::string text("a\0b", 3);
  const std::vector<std::int32_t> tokens = ids(text);
  char* back = nullptr;
  std::size_t length = 0;
  ASSERT_EQ(nibble_detokenize(model_.get(), tokens.data(), tokens.size(), 0, &back, &length),
            NIBBLE_OK);
  EXPECT_EQ(std::string(back, length), text);
  nibble_free_string(back);
  std::size_t n = 9;
  EXPECT_EQ(nibble_tokenize(model_.get(), nullptr, 0, 1, nullptr, 0, &n), NIBBLE_OK);
  EXPECT_EQ(n, 0u);
  ASSERT_EQ(nibble_detokenize(model_.get(), nullptr, 0, 0, &back, &length), NIBBLE_OK);
  EXPECT_EQ(take(back), "");
}

TEST_F(CApi, AShortArrayIsLeftAloneAndTheNeedIsTold) {
  const std::string text = "The capital of France is";
  const std::vector<std::int32_t> all = ids(text);
  std::vector<std::int32_t> out(all.size() - 1, -7);
  std::size_t n = 0;
  EXPECT_EQ(nibble_tokenize(model_.get(), text.data(), text.size(), 1, out.data(), out.size(), &n),
            NIBBLE_BUFFER_TOO_SMALL);
  EXPECT_EQ(n, all.size());
  for (const std::int32_t id : out) EXPECT_EQ(id, -7);
}

TEST_F(CApi, AnIdOutOfRangeIsRefused) {
  for (const std::int32_t id : {-1, 1 << 30}) {
    char* text = nullptr;
    EXPECT_EQ(nibble_detokenize(model_.get(), &id, 1, 0, &text, nullptr), NIBBLE_INVALID_ARGUMENT);
    EXPECT_EQ(text, nullptr);
  }
}

TEST_F(CApi, ChatsRenderAsTheGoldens) {
  const Json golden = golden_prompts();
  int rendered = 0;
  for (const auto& [name, row] : golden.as_object()) {
    const Json* messages = row.find("messages");
    if (!messages) continue;
    const Json* kwargs = row.find("kwargs");
    const std::string extra = kwargs != nullptr ? kwargs->dump() : "";
    char* text = nullptr;
    ASSERT_EQ(nibble_render_chat(model_.get(), messages->dump().c_str(),
                                 extra.empty() ? nullptr : extra.c_str(), 1, &text, nullptr),
              NIBBLE_OK)
        << name << ": " << nibble_last_error();
    EXPECT_EQ(take(text), row.find("rendered")->as_string()) << name;
    ++rendered;
  }
  EXPECT_GE(rendered, 2);
}

TEST_F(CApi, BadMessagesAreRefused) {
  const auto status = [&](const char* messages, const char* extra = nullptr) {
    char* text = nullptr;
    const nibble_status s = nibble_render_chat(model_.get(), messages, extra, 1, &text, nullptr);
    nibble_free_string(text);
    return s;
  };
  constexpr auto good = R"([{"role": "user", "content": "Hi"}])";
  EXPECT_EQ(status(good), NIBBLE_OK) << nibble_last_error();
  EXPECT_EQ(status(good, R"({"enable_thinking": false})"), NIBBLE_OK) << nibble_last_error();
  EXPECT_EQ(status(good, "{"), NIBBLE_BAD_FILE);
  EXPECT_EQ(status(good, "[]"), NIBBLE_INVALID_ARGUMENT);
  EXPECT_EQ(status("[{"), NIBBLE_BAD_FILE);
  EXPECT_EQ(status(""), NIBBLE_BAD_FILE);
  EXPECT_EQ(status("{}"), NIBBLE_INVALID_ARGUMENT);
  EXPECT_EQ(status(R"(["Hi"])"), NIBBLE_INVALID_ARGUMENT);
  EXPECT_EQ(status(R"([{"role": "user"}])"), NIBBLE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(nibble_last_error()).find("message 0"), std::string::npos);
  EXPECT_EQ(status(R"([{"role": "user", "content": 7}])"), NIBBLE_INVALID_ARGUMENT);
  EXPECT_EQ(status(R"([{"role": "user", "content": "Hi", "tool_calls": []}])"), NIBBLE_UNSUPPORTED);
  EXPECT_EQ(status(std::string(100'000, '[').c_str()), NIBBLE_BAD_FILE);
}

}  // namespace
}  // namespace nibble::test
