// `nibble parity`.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

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

TEST(ParityCommand, TwoPackingsOfOneModelAreEqual) {
  const ToolRun run = run_tool({"parity", model_path(), "--a", "cpu", "--b", "cpu", "--b-model",
                                model_path() + "/../hf-nvfp4-modelopt", "--tokens", "1,2,3", "--decode", "0"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.out.find("every bit"), std::string::npos) << run.out;
}

TEST(ParityCommand, NamesTheFirstDifference) {
  const TempFolder folder;
  std::filesystem::copy(model_path(), folder.path(), std::filesystem::copy_options::recursive);
  std::ifstream in(std::filesystem::path(model_path()) / "config.json");
  std::string config((std::istreambuf_iterator<char>(in)), {});
  const std::string key = "\"rms_norm_eps\": ";
  const std::size_t at = config.find(key);
  ASSERT_NE(at, std::string::npos);
  config.insert(at + key.size(), "1000");
  folder.write("config.json", config);
  const ToolRun run = run_tool({"parity", model_path(), "--a", "cpu", "--b", "cpu", "--b-model",
                                folder.path().string(), "--tokens", "1,2,3", "--decode", "0"});
  EXPECT_EQ(run.code, 5) << run.err;
  for (const char* part : {"first at", "model.layers.0.input_layernorm (rms_norm), op 1 of mixed(128), step 0",
                           "row 0, column 0, position 0", "0x"}) {
    EXPECT_NE(run.out.find(part), std::string::npos) << part << "\n" << run.out;
  }
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

// What a card computed (tools/gpu_check.sh writes these), the mirror of its profile computes here.
TEST(Parity, MirrorsReproduceTheDigestsOfCards) {
  const std::filesystem::path folder = std::filesystem::path(NIBBLE_TEST_DATA) / "digests";
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    // <checkpoint>.<profile>.json, or <checkpoint>.declared.<profile>.json
    const std::string name = entry.path().stem().string();
    const std::string checkpoint = name.substr(0, name.find('.')), profile = name.substr(name.rfind('.') + 1);
    const ToolRun run = run_tool({"parity", NIBBLE_TEST_DATA "/model/" + checkpoint, "--a",
                                  "cpu:mirror=" + profile, "--check", entry.path().string(), "-q"});
    EXPECT_EQ(run.code, 0) << name << ": " << run.out << run.err;
    EXPECT_EQ(run.out.rfind("equal ", 0), 0u) << name << ": " << run.out;
    ++files;
  }
  EXPECT_GT(files, 0u) << folder;
}

TEST(Parity, ADigestOfAnotherRunDiffers) {
  const ToolRun made = run_tool({"parity", model_path(), "--a", "cpu", "--tokens", "1,2,3", "--decode", "2",
                                 "--digest", "-q"});
  ASSERT_EQ(made.code, 0) << made.err;
  const std::string file = std::filesystem::temp_directory_path() / "nibble-digest.json";
  const auto check = [&](std::string text) {
    std::ofstream(file) << text;
    return run_tool({"parity", model_path(), "--a", "cpu:threads=1", "--check", file, "-q"});
  };
  EXPECT_EQ(check(made.out).code, 0);
  std::string other = made.out;
  const std::size_t at = other.find("\"digest\": \"") + 11;
  other[at] = other[at] == '0' ? '1' : '0';
  const ToolRun differs = check(other);
  EXPECT_EQ(differs.code, 5);
  EXPECT_NE(differs.out.find("differs   embed: expected"), std::string::npos) << differs.out;
  EXPECT_EQ(check("{}").code, 1);
  EXPECT_EQ(check("not json").code, 1);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace nibble::test
