// `nibble parity`.
#include <gtest/gtest.h>

#include "tests/tool/run_tool.h"

namespace nibble::test {
namespace {

TEST(ParityCommand, EqualAndItsJson) {
  const ToolRun run = run_tool({"parity", model_path(), "--a", "cpu:threads=1", "--b", "cpu:kernels=portable",
                                "-p", "The capital of France is", "--decode", "2", "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  const Json out = parse_json(run.out);
  EXPECT_TRUE(out.find("equal")->as_bool());
  EXPECT_EQ(out.find("decode_steps")->as_int(), 2);
  EXPECT_EQ(out.find("first"), nullptr);
  EXPECT_EQ(out.find("b")->find("kernels")->as_string(), "portable");
}

TEST(ParityCommand, DifferentCheckpoints) {
  const ToolRun run = run_tool({"parity", model_path(), "--a", "cpu", "--b", "cpu", "--b-model",
                                model_path() + "/../hf-nvfp4-modelopt", "--tokens", "1,2,3", "--decode", "0"});
  // The same weights in two packings, or the place where they part.
  EXPECT_TRUE(run.code == 0 || run.code == 5) << run.err;
  EXPECT_NE(run.out.find(run.code == 0 ? "every bit" : "first at"), std::string::npos) << run.out;
}

TEST(ParityCommand, Oracle) {
  const std::vector<std::string> args = {"parity", model_path(), "--a", "cpu", "--against-oracle",
                                         "--tokens", "1,2,3", "--decode", "1"};
  const ToolRun run = run_tool(args);
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.out.find("within 1e-05 of float64"), std::string::npos) << run.out;
  std::vector<std::string> tight = args;
  tight.insert(tight.end(), {"--bound", "1e-9"});
  EXPECT_EQ(run_tool(tight).code, 5);
}

TEST(ParityCommand, Usage) {
  EXPECT_EQ(run_tool({"parity", model_path(), "--a", "cpu"}).code, 2);
  EXPECT_EQ(run_tool({"parity", model_path(), "--b", "cpu", "--against-oracle"}).code, 2);
  EXPECT_EQ(run_tool({"parity", model_path(), "--b", "cpu", "--chunk", "65"}).code, 2);
  EXPECT_EQ(run_tool({"parity", model_path(), "--b", "cpu:what=1", "--decode", "0"}).code, 2);
  EXPECT_EQ(run_tool({"parity", model_path(), "--b", "cpu", "--decode", "100000"}).code, 1);
  EXPECT_EQ(run_tool({"parity", "nowhere", "--b", "cpu"}).code, 3);
}

}  // namespace
}  // namespace nibble::test
