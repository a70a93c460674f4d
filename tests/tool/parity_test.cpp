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
  for (const char* part : {"first at", "model.layers.0.input_layernorm (rms_norm), op 1 of mixed(64), step 0",
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
  // No number becomes the 0 that means something else.
  EXPECT_EQ(run_tool({"parity", model_path(), "--a", "cpu", "--against-oracle", "--bound", "1e-50"}).code, 2);
  EXPECT_EQ(run_tool({"parity", model_path(), "--a", "cpu", "--against-oracle", "--keep-going"}).code, 2);
  EXPECT_EQ(run_tool({"parity", model_path(), "--b", "cpu:what=1", "--decode", "0"}).code, 2);
  EXPECT_EQ(run_tool({"parity", model_path(), "--b", "cpu", "--decode", "100000"}).code, 1);
  EXPECT_EQ(run_tool({"parity", "nowhere", "--b", "cpu"}).code, 3);
  EXPECT_EQ(run_tool({"parity", model_path(), "--a", "cpu", "--against-oracle", "--kv-cache-dtype", "fp8"}).code, 2);
}

// What a card computed (tools/gpu_check.sh writes these), the mirror of its profile computes here.
TEST(Parity, MirrorsReproduceTheDigestsOfCards) {
  const std::filesystem::path folder = std::filesystem::path(NIBBLE_TEST_DATA) / "digests";
  for (const std::string activations : {"a16", "declared", "a8"}) {
    for (const std::string profile : {"sm70", "sm90", "sm120"}) {
      if (activations == "a8" && profile != "sm90") continue;
      const std::string name = "hf-nvfp4-ct." + activations + "." + profile + ".json";
      const ToolRun run = run_tool({"parity", NIBBLE_TEST_DATA "/model/hf-nvfp4-ct", "--a", "cpu:mirror=" + profile,
                                    "--check", (folder / name).string(), "-q"});
      EXPECT_EQ(run.code, 0) << name << ": " << run.out << run.err;
      EXPECT_EQ(run.out.rfind("equal ", 0), 0u) << name << ": " << run.out;
    }
  }
}

// Keys and values in fp8: the digest's file says so.
TEST(Parity, MirrorsReproduceTheDigestsOfCardsWithKeysAndValuesInFp8) {
  const std::filesystem::path folder = std::filesystem::path(NIBBLE_TEST_DATA) / "digests";
  for (const std::string profile : {"sm90", "sm120"}) {
    const std::string name = "hf-nvfp4-ct.a16-kv-fp8." + profile + ".json";
    const ToolRun run = run_tool({"parity", NIBBLE_TEST_DATA "/model/hf-nvfp4-ct", "--a", "cpu:mirror=" + profile, "--check",
                                  (folder / name).string(), "-q"});
    EXPECT_EQ(run.code, 0) << name << ": " << run.out << run.err;
    EXPECT_EQ(run.out.rfind("equal ", 0), 0u) << name << ": " << run.out;
  }
}

// A digest names the mode that it was made in, and the check runs in that.
TEST(Parity, A8HasADigest) {
  const ToolRun made = run_tool({"parity", model_path(), "--a", "cpu:mirror=sm90", "--tokens", "1,2,3", "--decode", "2",
                                 "--activations", "a8", "--digest", "-q"});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_NE(made.out.find("\"activations\": \"a8\""), std::string::npos) << made.out;
  const TempFolder folder;
  const std::string file = (folder.path() / "digest.json").string();
  std::ofstream(file) << made.out;
  EXPECT_EQ(run_tool({"parity", model_path(), "--a", "cpu:mirror=sm90", "--check", file, "-q"}).code, 0);
  EXPECT_EQ(run_tool({"parity", model_path(), "--a", "cpu:mirror=sm120", "--check", file, "-q"}).code, 5);
}

TEST(Parity, ADigestOfAnotherRunDiffers) {
  const ToolRun made = run_tool({"parity", model_path(), "--a", "cpu", "--tokens", "1,2,3", "--decode", "2",
                                 "--digest", "-q"});
  ASSERT_EQ(made.code, 0) << made.err;
  const TempFolder folder;
  const std::string file = (folder.path() / "digest.json").string();
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
  const auto edited = [&](const std::string& from, const std::string& to) {
    std::string text = made.out;
    const std::size_t place = text.find(from);
    EXPECT_NE(place, std::string::npos) << from;
    return check(text.replace(place, from.size(), to));
  };
  EXPECT_NE(edited("\"decode\": 2", "\"decode\": 4294967298").err.find("found 4294967298"), std::string::npos);
  EXPECT_EQ(edited("\"chunk\": 64", "\"chunk\": 65").code, 1);
  EXPECT_EQ(edited("[1, 2, 3]", "[1, 2, 4294967299]").code, 1);
  EXPECT_EQ(edited("\"a16\"", "\"nonsense\"").code, 1);
  const ToolRun escape = edited("\"profile\": \"f32\"", "\"profile\": \"x\\u001b[2J\"");
  EXPECT_EQ(escape.code, 5);
  EXPECT_EQ(escape.out.find('\x1b'), std::string::npos) << escape.out;
  EXPECT_EQ(edited("\"kind\": \"rms_norm\"", "\"kind\": \"embed\"").code, 5);
  EXPECT_EQ(edited("\"elements\": ", "\"elements\": 9").code, 5);
  const ToolRun beside = run_tool({"parity", model_path(), "--a", "cpu", "--check", file, "--decode", "7"});
  EXPECT_EQ(beside.code, 2);
  EXPECT_NE(beside.err.find("--decode"), std::string::npos) << beside.err;
  EXPECT_EQ(run_tool({"parity", model_path(), "--a", "cpu", "--b", "cpu", "--tokens", ""}).code, 2);
  EXPECT_EQ(check("{}").code, 1);
  EXPECT_EQ(check("not json").code, 1);
}

}  // namespace
}  // namespace nibble::test
