// Help, options and exit codes: what a user meets before any model is loaded.
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "tests/tool/run_tool.h"

namespace nibble::test {
namespace {

const std::vector<std::string> kCommands = {"generate", "chat",     "inspect",
                                            "bench",    "tokenize", "perplexity"};

bool one_line(const std::string& text) {
  return !text.empty() && text.find('\n') == text.size() - 1 && text.starts_with("nibble: ");
}

void expect_exit_codes(const std::string& help) {
  for (const char* line :
       {"\nExit codes:\n", "\n  0    done", "\n  1    an error", "\n  2    the command line",
        "\n  3    the model", "\n  4    out of memory", "\n  130  interrupted"}) {
    EXPECT_NE(help.find(line), std::string::npos) << line << "\n" << help;
  }
}

TEST(CommandLine, HelpNamesCommandsAndExitCodes) {
  const ToolRun run = run_tool({"--help"});
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.err, "");
  for (const std::string& command : kCommands)
    EXPECT_NE(run.out.find("\n  " + command), std::string::npos) << command;
  expect_exit_codes(run.out);
}

TEST(CommandLine, EveryCommandHasHelpWithExamplesAndExitCodes) {
  for (const std::string& command : kCommands) {
    const ToolRun run = run_tool({command, "--help"});
    EXPECT_EQ(run.code, 0) << command;
    EXPECT_EQ(run.err, "") << command;
    EXPECT_NE(run.out.find("nibble " + command), std::string::npos) << command;
    EXPECT_NE(run.out.find("MODEL"), std::string::npos) << command;
    const std::size_t examples = run.out.find("\nExamples:\n");
    ASSERT_NE(examples, std::string::npos) << run.out;
    EXPECT_NE(run.out.find("nibble " + command + " models/", examples), std::string::npos) << run.out;
    expect_exit_codes(run.out);
  }
}

TEST(CommandLine, Version) {
  const ToolRun run = run_tool({"--version"});
  EXPECT_EQ(run.code, 0);
  EXPECT_TRUE(std::regex_match(run.out, std::regex("nibble [0-9]+\\.[0-9]+\\.[0-9]+\n")))
      << run.out;
}

struct Wrong {
  std::vector<std::string> args;
  std::string expected, found;  // parts of the message
};

TEST(CommandLine, WrongOnesSayWhatWasExpectedAndFound) {
  const std::string model = model_path();
  const std::vector<Wrong> cases = {
      {{}, "expected a command (generate, chat,", "found nothing"},
      {{"generat"}, "did you mean generate?", "found \"generat\""},
      {{"--nonsense"}, "expected a command", "\"--nonsense\""},
      {{"generate", model, "--tempratur", "1"},
       "did you mean --temperature?",
       "found \"--tempratur\""},
      {{"generate", model, "--top-k", "many"},
       "--top-k: expected a whole number from 0",
       "found \"many\""},
      {{"generate", model, "--top-k=-1"},
       "--top-k: expected a whole number from 0",
       "found \"-1\""},
      {{"generate", model, "--top-p", "1.5"},
       "--top-p: expected a number over 0 and up to 1",
       "found \"1.5\""},
      {{"generate", model, "--top-p", "0"},
       "--top-p: expected a number over 0 and up to 1",
       "found \"0\""},
      {{"generate", model, "--temperature", "nan"},
       "--temperature: expected a number",
       "found \"nan\""},
      {{"generate", model, "-n", "-1"},
       "--max-new-tokens: expected a whole number from 0",
       "found \"-1\""},
      {{"generate", model, "-n", "99999999999999999999"},
       "expected a whole number",
       "found \"99999999999999999999\""},
      {{"generate", model, "--seed", "-3"},
       "--seed: expected a whole number from 0",
       "found \"-3\""},
      {{"generate", model, "--stop", "a\xc3"}, "--stop: expected UTF-8", "at byte 1"},
      {{"generate", model, "--stop", ""}, "--stop: expected a text that is not empty", "found"},
      {{"generate", model, "--activations", "a4"}, "expected one of a16, declared, a8", "found \"a4\""},
      {{"generate", model, "--kv-cache-dtype", "int4"}, "--kv-cache-dtype: expected one of auto, fp8", "found \"int4\""},
      {{"generate", model, "--step-tokens", "200"}, "expected a multiple of 64", "found \"200\""},
      {{"perplexity", model, "--step-tokens", "64"},
       "--step-tokens: expected a whole number from 128",
       "found \"64\""},
      {{"generate", model, "-p", "a", "--device", "cpu", "--threads", "100000"},
       "threads: expected 0 (all) to",
       "found 100000"},
      {{"generate", model, "-p", "a", "--device", "cpu", "--kernels", "abacus"},
       "kernels: expected one of",
       "abacus"},
      {{"generate", model, "-p", "a", "--device", "abacus"}, "no backend is called", "\"abacus\""},
      {{"generate", model, "-p", "a", "--device", "cpu:colour=red"},
       "expected a backend",
       "found \"colour=red\""},
      {{"chat", model, "--device", "cpu:1"}, "number: expected none", "found 1"},
      {{"perplexity", model, "-p", "a b", "--device", "cpu:graphs=off"},
       "graphs: expected not to be set",
       "found \"off\""},
      {{"inspect", model, "--device", "cpu", "--arch-path", "sm90"},
       "arch-path: expected none",
       "found \"sm90\""},
      {{"bench", model, "--device", "cpu:mirror=sm80"}, "mirror: expected one of", "found \"sm80\""},
      {{"parity", model, "--a", "cpu", "--b", "cpu:arch-path=sm90"},
       "arch-path: expected none",
       "found \"sm90\""},
      {{"parity", model, "--a", "cpu:fused-pack=on", "--b", "cpu"},
       "fused-pack: expected the same on A and B", "found on and off"},
      {{"parity", model, "--a", "cpu:fused-pack=on", "--digest"}, "fused-pack: expected off", "found on"},
      {{"parity", model, "--a", "cuda:fused-swiglu=on", "--digest"}, "fused-swiglu: expected off", "found on"},
      {{"parity", model, "--a", "cuda:fused-delta=on", "--digest"}, "fused-delta: expected off", "found on"},
      {{"generate", model, "-p", "a", "--device", "cpu:fused-linears=on"},
       "fused-linears: expected off (only CUDA cards have such launches)", "found \"on\""},
      {{"parity", model, "--a", "cpu:fused-add-norm=on", "--digest"}, "fused-add-norm: expected off", "found on"},
      {{"parity", model, "--a", "cpu:fused-gate=on", "--digest"}, "fused-gate: expected off", "found on"},
      {{"generate", model, "-p", "a", "--device", "cpu:fused-delta=on"},
       "fused-delta: expected off (only CUDA cards have the fused op)", "found \"on\""},
      {{"generate", model, "-p", "a", "--device", "cpu:fused-swiglu=on"},
       "fused-swiglu: expected off (only CUDA cards have the fused op)", "found \"on\""},
      {{"parity", model, "--a", "abacus", "--b", "cpu"}, "no backend is called", "\"abacus\""},
      {{"parity", model, "--a", "cpu:1x", "--digest"}, "expected a backend", "found \"1x\""},
      {{"generate", model, "-p", "a", "--device", "cpu:threads=2", "--threads", "1"},
       "--threads: expected 2, which --device \"cpu:threads=2\" names",
       "found 1"},
      {{"generate", model, "-p", "a", "--device", "cpu:threads=2", "--threads", "0"},
       "--threads: expected 2",
       "found 0"},
      {{"inspect", model, "--device", "cpu:kernels=portable", "--kernels", "avx2"},
       "--kernels: expected portable",
       "found avx2"},
      {{"inspect", model, "--device", "cpu:packing=off", "--packing", "on"}, "--packing: expected off", "found on"},
      {{"generate", model, "--packing", "yes"}, "--packing: expected one of on, off", "found \"yes\""},
      {{"bench", "--synthetic", "tiny", "--device", "cpu", "--packing", "off"}, "packing: expected on", "found \"off\""},
      {{"bench", "ops", "--op", "pack", "--device", "cpu:packing=off"}, "packing: expected on", "found \"off\""},
      {{"inspect", model, "--device", "cuda:arch-path=sm70", "--arch-path", "sm90"},
       "--arch-path: expected sm70",
       "found sm90"},
      {{"inspect", model, "--arch-path", ""}, "--arch-path: expected a value", "\"\""},
      {{"generate", model, "-p", "a", "--kernels", ""}, "--kernels: expected a value", "\"\""},
      {{"generate", model, "-f", ""}, "--file: expected a value that is not empty", "\"\""},
      {{"generate", model, "--prompt=", "--json"}, "expected a prompt", "found an empty text"},
      {{"generate", model, "-p", "a", "--seed=", "--json"}, "--seed: expected", "found \"\""},
      {{"generate", model, "--chat", "-p", "a", "--system", "a\xff"},
       "--system: expected UTF-8",
       "at byte 1"},
      {{"generate", model, "--chat", "-p", "a", "--template-args", "{\"messages\": []}"},
       "--template-args: expected further values",
       "found \"messages\""},
      {{"tokenize", model, "-p", "a", "--ids", "--json"}, "expected --ids or --json", "found both"},
      {{"perplexity", model, "-p", ""}, "expected a text of at least 2 tokens", "found 0"},
      {{"generate", model, "more"}, "expected no further argument", "found \"more\""},
      {{"generate", model, "-p", "a", "-f", "b"}, "expected --prompt or --file", "found both"},
      {{"generate", model, "-p", "a", "-q", "-v"}, "expected --quiet or --verbose", "found both"},
      {{"generate", model, "-p", "a", "--system", "x"}, "expected --chat beside it", "found none"},
      {{"generate", model, "--chat", "-p", "a", "--template-args", "[1]"},
       "expected a JSON object",
       "found \"[1]\""},
      {{"generate", model, "--chat", "-p", "a", "--template-args", "{"}, "--template-args", "JSON"},
      {{"generate", "-p", "a"}, "expected a folder with config.json", "no MODEL given"},
      {{"generate", model, "-f", "/nonexistent/file"}, "cannot open file", "No such file"},
      {{"generate", model, "-f", "/"}, "expected a text file", "found the folder"},
      {{"generate", model, "-p", ""},
       "expected a prompt of at least one token",
       "found an empty text"},
      {{"bench"}, "expected MODEL or --synthetic SHAPE", "found neither"},
      {{"bench", model, "--synthetic", "tiny"}, "expected MODEL or --synthetic", "found both"},
      {{"bench", model, "--layers", "2"}, "expected --synthetic", "found MODEL"},
      {{"bench", "--synthetic", "huge"},
       "--synthetic: expected one of qwen3_5-27b",
       "found \"huge\""},
      {{"bench", model, "-p", "12,x"}, "--prefill: expected whole numbers", "found \"12,x\""},
      {{"bench", model, "-p", "12,"}, "--prefill: expected whole numbers", "found \"12,\""},
      {{"bench", model, "-p", "0", "-n", "0"}, "expected at least one row", "found"},
      {{"bench", model, "-p", "5000", "-n", "0"}, "needs 5001 positions", "the model's 4096"},
      {{"bench", model, "-o", "xml"}, "expected one of md, json, csv", "found \"xml\""},
      {{"bench", "ops", "--op", "norm"}, "bench ops: --op: expected one of linear", "found \"norm\""},
      {{"bench", "ops", "--shapes", "27b-tp3"}, "--shapes: expected 27b, 27b-tp2,", "found \"27b-tp3\""},
      {{"bench", "ops", "--shapes", "64x64,64x"}, "--shapes: expected 27b, 27b-tp2,", "found \"64x64,64x\""},
      {{"bench", "ops", "--shapes", "0x64"}, "--shapes: expected 27b, 27b-tp2,", "found \"0x64\""},
      {{"bench", "ops", "--shapes", "64x40"}, "expected K a multiple of 16 for nvfp4", "found 64x40"},
      {{"bench", "ops", "--shapes", "64x99999999"}, "K: expected 1 to 16777216", "found 99999999"},
      {{"bench", "ops", "--formats", "nvfp4,int4"},
       "--formats: expected nvfp4, fp8, bf16 or a8",
       "found \"nvfp4,int4\""},
      {{"bench", "ops", "-t", "1,0"}, "--tokens: expected whole numbers from 1", "found \"1,0\""},
      {{"bench", "ops", "-t", "many"}, "--tokens: expected whole numbers from 1", "found \"many\""},
      {{"bench", "ops", "--op", "grouped", "--shapes", "64x64"}, "--shapes: expected qwen3_next", "found \"64x64\""},
      {{"bench", "ops", "--op", "grouped", "--formats", "f16"}, "--formats: expected nvfp4, fp8 or bf16", "found \"f16\""},
      {{"bench", "ops", "--op", "gate-up", "--tiles"}, "--op gate-up: expected no --tiles", "which is of linear"},
      {{"bench", "ops", "--op", "gate-up", "--formats", "f16"}, "--formats: expected nvfp4, fp8 or bf16", "found \"f16\""},
      {{"bench", "ops", "--op", "gate-up", "--shapes", "12x16", "--device", "cpu"}, "expected N a multiple of 8", "found 12"},
      {{"bench", "ops", "--op", "gate-up", "--device", "cpu"}, "bench ops: expected a CUDA device", "found cpu"},
      {{"bench", "ops", "--op", "delta", "--formats", "nvfp4"}, "--op delta: expected no --formats", "of linear"},
      {{"bench", "ops", "--op", "delta", "--tiles"}, "--op delta: expected no --tiles", "which is of linear"},
      {{"bench", "ops", "--op", "delta", "--shapes", "64x64"}, "with --op delta", "found \"64x64\""},
      {{"bench", "ops", "--op", "delta", "--sequences", "0"}, "--sequences: expected", "found \"0\""},
      {{"bench", "ops", "--op", "delta", "-t", "131073"}, "--tokens: expected", "found \"131073\""},
      {{"bench", "ops", "--op", "delta", "-t", "4096", "--sequences", "1024", "--device", "cpu"}, "rows of all sequences: expected 1 to 1048576",
       "found 1024 sequences of 4096"},
      {{"bench", "ops", "--op", "pack", "--together"}, "--op pack: expected no --together", "which is of linear"},
      {{"bench", "ops", "--op", "grouped", "--products"}, "--op grouped: expected no --products", "which is of linear"},
      {{"bench", "ops", "--op", "delta", "--together"}, "--op delta: expected no --together", "which is of linear"},
      {{"bench", "ops", "--op", "delta", "--device", "cpu"}, "bench ops: expected a CUDA device", "found cpu"},
      {{"bench", "ops", "--op", "linear", "--sequences", "2"}, "--op linear: expected no --sequences", "of delta"},
      {{"bench", "ops", "--op", "pack", "--tiles"}, "--op pack: expected no --tiles", "which is of linear"},
      {{"bench", "ops", "--op", "pack", "--peer", "none"}, "--op pack: expected no --peer", "which is of linear"},
      {{"bench", "ops", "-r", "0"}, "bench ops: --repetitions: expected a whole number from 1", "found \"0\""},
      {{"bench", "ops", "--peer", "mkl"}, "--peer: expected one of cublas, none", "found \"mkl\""},
      {{"bench", "ops", "--explain", "-o", "csv"}, "--explain: expected md or json", "found csv"},
      {{"bench", "ops", "--device="}, "--device: expected a value that is not empty", "found \"\""},
      {{"bench", "ops", "--device", "gpu"}, "no backend is called \"gpu\"", "expected one of"},
      {{"bench", "ops", "--device", "cpu"}, "bench ops: expected a CUDA device", "found cpu"},
      {{"bench", "ops", "--op", "pack", "--shapes", "64x64"}, "--shapes: expected 27b, 27b-tp2", "found \"64x64\""},
      {{"bench", "ops", "--op", "pack", "--device", "cpu", "--formats", "nvfp4"},
       "formats: expected nvfp4_static, fp8_tensor_static",
       "found \"nvfp4\""},
      {{"bench", "ops", "--op", "pack", "--explain"}, "--op pack: expected no --explain", "of linear"},
      {{"bench", "ops", "--op", "pack", "--peer", "none"}, "--op pack: expected no --peer", "of linear"},
      {{"bench", "ops", "--wide"}, "bench ops: expected an option of this command", "found \"--wide\""},
      {{"bench", "-r", "3", "ops"}, "bench ops: expected its options behind it", "\"--repetitions\""},
      {{"tokenize", model, "--decode", "12", "x"}, "expected token ids", "found \"x\""},
      {{"perplexity", model, "-p", "a b", "--context", "64", "--stride", "65"},
       "expected at most --context (64)",
       "found 65"},
      {{"perplexity", model, "-p", "a b", "--context", "99999999"},
       "--context: expected at most the model's 4096 positions, found 99999999"},
      {{"perplexity", model, "-p", "a b", "--context", "5000"},
       "expected at most the model's 4096",
       "found 5000"},
      {{"inspect", model, "--max-sequences", "0"},
       "--max-sequences: expected a whole number from 1 to 4096",
       "found \"0\""},
  };
  for (const Wrong& c : cases) {
    const ToolRun run = run_tool(c.args);
    const std::string shown = testing::PrintToString(c.args);
    EXPECT_EQ(run.code, 2) << shown << "\n" << run.err;
    EXPECT_EQ(run.out, "") << shown;
    std::string last = run.err.substr(0, run.err.size() - 1);
    last = run.err.substr(last.rfind('\n') + 1);  // notes of the load may precede it
    EXPECT_TRUE(one_line(last)) << shown << "\n" << run.err;
    EXPECT_NE(last.find(c.expected), std::string::npos) << shown << "\n" << run.err;
    EXPECT_NE(last.find(c.found), std::string::npos) << shown << "\n" << run.err;
  }
}

TEST(CommandLine, WhatIsSaidTwiceAlikeIsTaken) {
  const ToolRun run = run_tool({"inspect", model_path(), "--device", "cpu:threads=2,kernels=portable", "--threads",
                                "2", "--kernels", "portable", "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  const Json info = parse_json(run.out);
  EXPECT_EQ(info.find("threads")->as_int(), 2);
  EXPECT_EQ(info.find("kernels")->as_string(), "portable");
}

TEST(CommandLine, SaysWhatIsMappedAndWhatIsPacked) {
  const auto inspected = [](const char* packing) {
    const ToolRun run = run_tool({"inspect", model_path(), "--device", "cpu", "--packing", packing, "--json"});
    EXPECT_EQ(run.code, 0) << run.err;
    return parse_json(run.out);
  };
  const Json on = inspected("on"), off = inspected("off");
  EXPECT_TRUE(on.find("packing")->as_bool());
  EXPECT_FALSE(off.find("packing")->as_bool());
  EXPECT_EQ(on.find("mapped_bytes")->as_int(), 0);
  EXPECT_GT(off.find("mapped_bytes")->as_int(), 4'000'000);
  EXPECT_LT(off.find("weight_bytes")->as_int(), on.find("weight_bytes")->as_int() / 20);
  const ToolRun memory = run_tool({"inspect", model_path(), "--device", "cpu:packing=off", "--memory"});
  EXPECT_NE(memory.out.find("weights read in mapped files, beside"), std::string::npos) << memory.out;
  const ToolRun stats = run_tool({"generate", model_path(), "-p", "a", "-n", "1", "--device", "cpu", "--packing", "off", "--stats"});
  EXPECT_NE(stats.err.find(" read in mapped files, "), std::string::npos) << stats.err;
  const ToolRun bench = run_tool({"bench", model_path(), "--device", "cpu", "--packing", "off", "-p", "4", "-n", "0", "-d", "0",
                                  "-b", "1", "-r", "1", "--no-roof"});
  EXPECT_NE(bench.out.find(" read in mapped files, "), std::string::npos) << bench.out << bench.err;
}

TEST(CommandLine, LongArgumentsAreShortened) {
  const std::string word(100'000, 'w'), model = model_path();
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {word},
           {"generate", model, "--" + word},
           {"generate", model, "--quiet=" + word},
           {"generate", model, "--top-k", word},
           {"generate", model, "-p", "a", "--device", word},
           {"generate", model, "-p", "a", "--device", "cpu:" + word},
           {"generate", model, "-p", "a", "--device", "cpu:kernels=" + word},
           {"generate", model, "-p", "a", "--device", "cpu:mirror=" + word},
           {"generate", model, "-p", "a", "--device", "cpu", "--arch-path", word},
           {"generate", model, "-p", "a", "--device", "cpu:kernels=portable", "--kernels", word},
           {"parity", model, "--a", word, "--b", "cpu"},
           {"bench", "--synthetic", word},
           {"bench", model, "-p", word}}) {
    const ToolRun run = run_tool(args);
    EXPECT_EQ(run.code, 2) << args[0].substr(0, 99) << "\n" << run.err.substr(0, 999);
    EXPECT_LT(run.err.size(), 800u) << run.err.substr(0, 999);
  }
}

TEST(CommandLine, OptionMayComeTwiceTheLastOneCounts) {
  const ToolRun run =
      run_tool({"generate", model_path(), "-p", "The", "-n", "1", "-n", "2", "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(parse_json(run.out).find("new_tokens")->as_int(), 2);
}

TEST(CommandLine, AnEmptyValueTakesNothingElse) {
  // The option's own value, even where it looks like another option with an empty value.
  const ToolRun text = run_tool({"tokenize", model_path(), "-p", "--prompt=", "--ids"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_GT(text.out.size(), 2u);
  const ToolRun empty = run_tool({"tokenize", model_path(), "--prompt=", "--ids"});
  EXPECT_EQ(empty.code, 0) << empty.err;
  EXPECT_EQ(empty.out, "\n");
}

TEST(CommandLine, AModelBehindALinkToItself) {
  const TempFolder folder;
  const auto link = folder.path() / "config.json";
  std::filesystem::create_symlink(link, link);
  const ToolRun run = run_tool({"generate", folder.path().string(), "-p", "a"});
  EXPECT_EQ(run.code, 3) << run.err;
  EXPECT_TRUE(one_line(run.err)) << run.err;
  EXPECT_NE(run.err.find("config.json cannot be reached"), std::string::npos) << run.err;
}

TEST(CommandLine, AModelWhoseConfigIsAFolder) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.path() / "config.json");
  const ToolRun run = run_tool({"inspect", folder.path().string()});
  EXPECT_EQ(run.code, 3) << run.err;
  EXPECT_TRUE(one_line(run.err)) << run.err;
  EXPECT_NE(run.err.find("config.json: expected a regular file"), std::string::npos) << run.err;
}

TEST(CommandLine, ModelsThatAreNone) {
  const TempFolder folder;
  folder.write("notes.txt", "no model");
  folder.write("model.safetensors", "");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"/nonexistent/model", "found nothing at this path"},
      {folder.path().string(), "found a folder without config.json"},
      {(folder.path() / "notes.txt").string(), "found a file that is no part of such a folder"},
      {(folder.path() / "model.safetensors").string(),
       "found a file with no config.json beside it"},
  };
  for (const auto& [path, found] : cases) {
    for (const std::vector<std::string>& args :
         {std::vector<std::string>{"generate", path, "-p", "a"},
          {"chat", path},
          {"inspect", path},
          {"bench", path},
          {"tokenize", path, "-p", "a"},
          {"perplexity", path, "-p", "a b"}}) {
      const ToolRun run = run_tool(args);
      EXPECT_EQ(run.code, 3) << args[0] << " " << path << "\n" << run.err;
      EXPECT_TRUE(one_line(run.err)) << run.err;
      EXPECT_NE(run.err.find("expected a folder with config.json"), std::string::npos) << run.err;
      EXPECT_NE(run.err.find(found), std::string::npos) << run.err;
    }
  }
}

TEST(CommandLine, GgufFilesThatAreNone) {
  const TempFolder folder;
  folder.write("broken.gguf", "GGUF");
  for (const std::string name : {"broken.gguf", "absent.gguf"}) {
    const std::string path = (folder.path() / name).string();
    for (const std::vector<std::string>& args :
         {std::vector<std::string>{"generate", path, "-p", "a"}, {"inspect", path}, {"tokenize", path, "-p", "a"}}) {
      const ToolRun run = run_tool(args);
      EXPECT_EQ(run.code, 3) << args[0] << " " << path << "\n" << run.err;
      EXPECT_TRUE(one_line(run.err)) << run.err;
      EXPECT_NE(run.err.find(name), std::string::npos) << run.err;
    }
  }
}

}  // namespace
}  // namespace nibble::test
