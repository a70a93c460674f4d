// A C program and the C++ API see the same model.
#include "client.h"

#include "fixture.h"
#include "nibble/nibble.hpp"

namespace nibble::test {
namespace {

TEST(CClient, ContinuesTheGoldenPrompt) {
  const Json golden = golden_prompts();
  const Json& capital = *golden.find("capital");
  char text[1024];
  ASSERT_EQ(client_generate(kCheckpoint.c_str(), capital.find("text")->as_string().c_str(), 32,
                            text, sizeof text),
            0)
      << nibble_last_error();
  EXPECT_EQ(std::string(text), capital.find("greedy_text")->as_string());
}

TEST(CClient, ReportsWhatFailed) {
  char text[16];
  EXPECT_EQ(client_generate("no/such/folder", "x", 1, text, sizeof text), 1);
  EXPECT_NE(std::string(nibble_last_error()).find("no/such/folder"), std::string::npos);
}

TEST(CClient, VersionIsTheLibrarys) {
  EXPECT_STREQ(nibble_version(), nibble::version());
}

TEST_F(CApi, InfoIsJsonAndAgreesWithTheCheckpoint) {
  char* text = nullptr;
  std::size_t length = 0;
  ASSERT_EQ(nibble_model_info(model_.get(), &text, &length), NIBBLE_OK);
  EXPECT_EQ(std::string(text).size(), length);
  const Json info = Json::parse(take(text), "info");
  EXPECT_EQ(info.find("architecture")->as_string(), "qwen3_5");
  EXPECT_EQ(info.find("layers")->as_int(), 8);
  EXPECT_EQ(info.find("vocab")->as_int(), 4096);
  EXPECT_GT(info.find("weight_bytes")->as_int(), 3'000'000);
  std::int64_t parameters = 0;
  for (const Json& row : info.find("formats")->as_array()) {
    parameters += row.find("parameters")->as_int();
  }
  EXPECT_GT(parameters, 8'000'000);
}

TEST_F(CApi, StatsCountTheSteps) {
  SessionHandle s = session();
  read(generate(s.get(), ids("The capital of France is"), 4).get());
  char* text = nullptr;
  ASSERT_EQ(nibble_model_stats(model_.get(), &text, nullptr), NIBBLE_OK);
  const Json stats = Json::parse(take(text), "stats");
  EXPECT_GE(stats.find("steps")->as_int(), 4);
  EXPECT_EQ(stats.find("allocations")->as_int(), 0);
  EXPECT_FALSE(stats.find("kernels")->as_object().empty());
}

}  // namespace
}  // namespace nibble::test
