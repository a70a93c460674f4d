// The command on dense models: inspect, generate, perplexity, bench, with and without a text side.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tests/support/golden.h"
#include "tests/tool/run_tool.h"

namespace nibble::test {
namespace {

const std::string kText =
    "The delta rule writes a value where the key points, and it first takes away what was there.\n";

class DenseTool : public testing::TestWithParam<const char*> {
 protected:
  std::string path() const { return std::string(NIBBLE_TEST_DATA "/archs/") + GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(All, DenseTool, testing::Values("qwen3", "llama"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(DenseTool, Inspect) {
  const ToolRun run = run_tool({"inspect", path(), "--memory", "--tensors"});
  ASSERT_EQ(run.code, 0) << run.err;
  const bool qwen = path().ends_with("qwen3");
  const std::vector<std::string> parts = {
      qwen ? "qwen3" : "llama", "2 layers, hidden 128, vocabulary 512, 4096 positions",
      "model.layers.1.mlp.down_proj",
      qwen ? "attention     2 layers, 4 heads of 64, 2 KV heads, rotary 64 of 64, theta 1e+06\n"
           : "attention     2 layers, 2 heads of 64, 1 KV heads, rotary 64 of 64, theta 10000, "
             "scaled: llama3, factor 8 beyond 128 positions\n",
      qwen ? "head tied to the embedding" : "head of its own"};
  for (const std::string& part : parts) {
    EXPECT_NE(run.out.find(part), std::string::npos) << part << "\n" << run.out;
  }
  EXPECT_EQ(run.out.find("delta net"), std::string::npos) << run.out;
  const ToolRun json = run_tool({"inspect", path(), "--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const Json info = parse_json(json.out);
  EXPECT_EQ(info.find("attention")->find("rope_scaling")->as_string(),
            qwen ? "none" : "llama3, factor 8 beyond 128 positions");
  EXPECT_EQ(info.find("delta_net")->find("layers")->as_int(), 0);
  EXPECT_EQ(info.find("delta_bytes")->as_int(), 0);
  EXPECT_EQ(info.find("tied_head")->as_bool(), qwen);
}

TEST_P(DenseTool, GenerateGivesTheOraclesTokens) {
  const Golden golden(std::string(NIBBLE_TEST_DATA "/archs/golden/") + GetParam() + ".safetensors");
  const std::string prompt = path().ends_with("qwen3")
                                 ? "Over the hill the river runs,\nunder the hill the"
                                 : "Mix two eggs with a cup of flour and";
  const auto wanted = golden.i32(path().ends_with("qwen3") ? "poem.greedy" : "recipe.greedy");
  const ToolRun run = run_tool({"generate", path(), "-p", prompt, "-n", "24", "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  std::vector<std::int32_t> tokens;
  const Json out = parse_json(run.out);
  for (const Json& t : out.find("tokens")->as_array())
    tokens.push_back(static_cast<std::int32_t>(t.as_int()));
  EXPECT_EQ(tokens, wanted);
}

TEST_P(DenseTool, ChatPerplexityAndBench) {
  const ToolRun chat = run_tool({"generate", path(), "--chat", "-p", "Name a colour.", "-n", "4"});
  EXPECT_EQ(chat.code, 0) << chat.err;
  const TempFolder folder;
  const std::string file = folder.write("text.txt", kText);
  const ToolRun perplexity = run_tool({"perplexity", path(), "-f", file, "--json"});
  ASSERT_EQ(perplexity.code, 0) << perplexity.err;
  EXPECT_TRUE(std::isfinite(parse_json(perplexity.out).find("perplexity")->as_double()));
  const ToolRun bench = run_tool({"bench", path(), "-p", "64", "-n", "2", "-d", "0", "-b", "1",
                                  "-r", "1", "-o", "json", "--no-roof"});
  ASSERT_EQ(bench.code, 0) << bench.err;
  EXPECT_EQ(parse_json(bench.out).find("rows")->as_array().size(), 2u);
  const std::string shape = std::string("tiny-") + GetParam();
  const ToolRun synthetic = run_tool({"bench", "--synthetic", shape, "-p", "64", "-n", "2", "-d",
                                      "0", "-b", "1", "-r", "1", "-o", "json", "--no-roof"});
  EXPECT_EQ(synthetic.code, 0) << synthetic.err;
}

// Every op beside its formula in float64, and two kernel levels of one profile.
TEST_P(DenseTool, Parity) {
  const ToolRun oracle =
      run_tool({"parity", path(), "--a", "cpu", "--against-oracle", "-p", kText, "--decode", "3"});
  EXPECT_EQ(oracle.code, 0) << oracle.out << oracle.err;
  const ToolRun kernels =
      run_tool({"parity", path(), "--a", "cpu:mirror=sm90", "--b",
                "cpu:mirror=sm90,kernels=portable", "-p", kText, "--decode", "3"});
  EXPECT_EQ(kernels.code, 0) << kernels.out << kernels.err;
}

// Without a tokenizer weights can be inspected and timed; what needs text says what is missing.
TEST_P(DenseTool, WithoutATokenizer) {
  const TempFolder folder;
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(path() + "/" + name, folder.path() / name);
  }
  const std::string bare = folder.path().string();
  const ToolRun inspect = run_tool({"inspect", bare});
  EXPECT_EQ(inspect.code, 0) << inspect.err;
  EXPECT_NE(inspect.out.find("tokenizer     none"), std::string::npos) << inspect.out;
  const ToolRun bench = run_tool({"bench", bare, "-p", "64", "-n", "2", "-d", "0", "-b", "1", "-r",
                                  "1", "-o", "json", "--no-roof"});
  EXPECT_EQ(bench.code, 0) << bench.err;
  const ToolRun generate = run_tool({"generate", bare, "-p", "a", "-n", "2"});
  EXPECT_NE(generate.code, 0);
  EXPECT_NE(generate.err.find("tokenizer"), std::string::npos) << generate.err;
}

}  // namespace
}  // namespace nibble::test
