// `nibble generate` and `nibble tokenize` on the trained checkpoint.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "tests/tool/run_tool.h"

namespace nibble::test {
namespace {

const std::string kPrompt = "The capital of France is";
const std::string kGate = " Paris.\nThe capital of Germany is Berlin.";

TEST(Generate, GateText) {
  const ToolRun run = run_tool({"generate", model_path(), "-p", kPrompt, "-n", "32"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(run.out.starts_with(kGate)) << run.out;
  EXPECT_EQ(run.out.back(), '\n');
}

TEST(Generate, PromptFromInputAndFile) {
  // One final newline is not part of the prompt.
  const TempFolder folder;
  const std::string file = folder.write("prompt.txt", kPrompt + "\n");
  const ToolRun piped = run_tool({"generate", model_path(), "-n", "12"}, {.input = kPrompt + "\n"});
  const ToolRun dash =
      run_tool({"generate", model_path(), "-n", "12", "-f", "-"}, {.input = kPrompt});
  const ToolRun from_file = run_tool({"generate", model_path(), "-n", "12", "-f", file});
  ASSERT_EQ(piped.code, 0) << piped.err;
  EXPECT_TRUE(piped.out.starts_with(" Paris.\nThe capital of Germany")) << piped.out;
  EXPECT_EQ(piped.out, dash.out);
  EXPECT_EQ(piped.out, from_file.out);
}

TEST(Generate, EchoPutsThePromptFirst) {
  const ToolRun run = run_tool({"generate", model_path(), "-p", kPrompt, "-n", "2", "--echo"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(run.out.starts_with(kPrompt + " Paris")) << run.out;
}

TEST(Generate, Json) {
  const ToolRun run =
      run_tool({"generate", model_path(), "-p", kPrompt, "-n", "32", "--json", "--seed", "7"});
  ASSERT_EQ(run.code, 0) << run.err;
  const Json out = parse_json(run.out);
  EXPECT_TRUE(out.find("text")->as_string().starts_with(kGate));
  EXPECT_EQ(out.find("tokens")->as_array().size(), 32u);
  EXPECT_EQ(out.find("prompt_tokens")->as_int(), 5);
  EXPECT_EQ(out.find("new_tokens")->as_int(), 32);
  EXPECT_EQ(out.find("stop_reason")->as_string(), "length");
  EXPECT_EQ(out.find("seed")->as_int(), 7);
  EXPECT_GT(out.find("timings")->find("prompt_tokens_per_second")->as_double(), 0);
  EXPECT_GT(out.find("timings")->find("new_tokens_per_second")->as_double(), 0);
  EXPECT_EQ(out.find("model")->find("activations")->as_string(), "a16");
  EXPECT_EQ(out.find("model")->find("kv_cache_dtype")->as_string(), "auto");
}

TEST(Generate, StopTextEndsTheAnswerAndIsLeftOut) {
  const ToolRun run = run_tool({"generate", model_path(), "-p", kPrompt, "-n", "32", "--json",
                                "--stop", "Rome", "--stop", "\nThe"});
  ASSERT_EQ(run.code, 0) << run.err;
  const Json out = parse_json(run.out);
  EXPECT_EQ(out.find("text")->as_string(), " Paris.");
  EXPECT_EQ(out.find("stop_reason")->as_string(), "stop_text");
}

TEST(Generate, ChatStopsAtTheModelsToken) {
  const std::vector<std::string> args = {
      "generate", model_path(), "--chat", "--json",
      "-n",       "24",         "-p",     "What is the capital of Japan?"};
  const ToolRun run = run_tool(args);
  ASSERT_EQ(run.code, 0) << run.err;
  const Json out = parse_json(run.out);
  EXPECT_EQ(out.find("text")->as_string(), "The capital of Japan is Tokyo.");
  EXPECT_EQ(out.find("prompt_tokens")->as_int(), 15);
  EXPECT_EQ(out.find("stop_reason")->as_string(), "stop_token");

  std::vector<std::string> on = args;
  on.push_back("--ignore-stop-tokens");
  const ToolRun longer = run_tool(on);
  ASSERT_EQ(longer.code, 0) << longer.err;
  EXPECT_EQ(parse_json(longer.out).find("new_tokens")->as_int(), 24);
}

TEST(Generate, SeedDecidesASampledText) {
  const auto sampled = [](const std::string& seed) {
    std::vector<std::string> args = {"generate", model_path(),    "-p", "The",   "-n",
                                     "24",       "--temperature", "2",  "--json"};
    if (!seed.empty()) args.insert(args.end(), {"--seed", seed});
    const ToolRun run = run_tool(args);
    EXPECT_EQ(run.code, 0) << run.err;
    return parse_json(run.out);
  };
  const Json one = sampled("1");
  EXPECT_EQ(*one.find("tokens"), *sampled("1").find("tokens"));
  EXPECT_NE(*one.find("tokens"), *sampled("2").find("tokens"));
  // A drawn seed is told, and repeats the text.
  const Json drawn = sampled("");
  EXPECT_EQ(*drawn.find("tokens"),
            *sampled(std::to_string(drawn.find("seed")->as_uint())).find("tokens"));
}

TEST(Generate, AFullContextIsSaid) {
  const ToolRun run = run_tool({"generate", model_path(), "-p", kPrompt, "--kv-tokens", "64", "-n",
                                "500", "--ignore-stop-tokens"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.err.find("the context is full (64 tokens)"), std::string::npos) << run.err;
}

TEST(Generate, ATemplateThatWritesNothingIsNamed) {
  const TempFolder folder;
  for (const auto& file : std::filesystem::directory_iterator(model_path())) {
    const auto name = file.path().filename();
    if (name != "chat_template.jinja") {
      std::filesystem::create_symlink(std::filesystem::absolute(file), folder.path() / name);
    }
  }
  folder.write("chat_template.jinja", "{# nothing #}");
  const ToolRun run = run_tool({"generate", folder.path().string(), "--chat", "-p", "a"});
  EXPECT_EQ(run.code, 1) << run.err;
  EXPECT_NE(run.err.find("chat template: expected it to write a prompt"), std::string::npos)
      << run.err;
}

TEST(Generate, StatsAndMessagesStayOnStderr) {
  const ToolRun run =
      run_tool({"generate", model_path(), "-p", kPrompt, "-n", "8", "--stats", "--verbose"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out, " Paris.\nThe capital of Germany is Berlin\n");
  EXPECT_NE(run.err.find("prompt     5 tokens in "), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("stop       length"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find(" 0 arena allocations inside"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find(" (0 ahead, 0 rows taken back) "), std::string::npos) << run.err;
  EXPECT_EQ(run.err.find('\033'), std::string::npos) << "no colours in a pipe";
  const ToolRun ahead = run_tool({"generate", model_path(), "-p", kPrompt, "-n", "8", "--stats", "--run-ahead", "on"});
  EXPECT_NE(ahead.err.find(" (6 ahead, 0 rows taken back) "), std::string::npos) << ahead.err;
  EXPECT_EQ(ahead.out, run.out);
  const ToolRun quiet = run_tool({"generate", model_path(), "-p", kPrompt, "-n", "8", "--quiet"});
  EXPECT_EQ(quiet.err, "");
  EXPECT_EQ(quiet.out, run.out);
}

TEST(Generate, FileOfTheFolderNamesTheModel) {
  const ToolRun run =
      run_tool({"generate", model_path() + "/config.json", "-p", kPrompt, "-n", "2"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(run.out.starts_with(" Paris")) << run.out;
}

TEST(Generate, ThreadsAndKernelsDoNotChangeTheText) {
  const ToolRun one =
      run_tool({"generate", model_path(), "-p", kPrompt, "-n", "16", "--threads", "1"});
  const ToolRun portable =
      run_tool({"generate", model_path(), "-p", kPrompt, "-n", "16", "--kernels", "portable"});
  ASSERT_EQ(one.code, 0) << one.err;
  ASSERT_EQ(portable.code, 0) << portable.err;
  EXPECT_TRUE(one.out.starts_with(kGate));
  EXPECT_EQ(one.out, portable.out);
}

TEST(Generate, ReaderThatLeavesEndsItQuietly) {
  const ToolRun run = run_tool(
      {"generate", model_path(), "-p", kPrompt, "-n", "3000", "--ignore-stop-tokens", "-q"},
      {.close_output_after = 1});
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.err, "");
}

TEST(Generate, InterruptIs130) {
  const ToolRun run =
      run_tool({"generate", model_path(), "-p", kPrompt, "-n", "3000", "--ignore-stop-tokens"},
               {.interrupt_after = 1});
  EXPECT_EQ(run.code, 130);
  EXPECT_TRUE(run.out.starts_with(" Paris")) << run.out;
  EXPECT_LT(run.out.size(), 3000u);
}

TEST(Generate, PromptBeyondTheContextIsAnErrorWhileRunning) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "The capital of France is Paris.\n";
  const ToolRun run = run_tool({"generate", model_path(), "--kv-tokens", "64"}, {.input = text});
  EXPECT_EQ(run.code, 1);
  EXPECT_NE(run.err.find("does not fit"), std::string::npos) << run.err;
}

TEST(Generate, TerminalGetsABarAndColoursUnlessTheyAreUnwanted) {
  const ToolRun run = run_on_terminal({"generate", model_path(), "-p", kPrompt, "-n", "2"}, "");
  EXPECT_EQ(run.code, 0) << run.out;
  EXPECT_NE(run.out.find("] "), std::string::npos) << run.out;
  EXPECT_TRUE(std::regex_search(run.out, std::regex("\\[=+ *\\] +[0-9]+%"))) << run.out;
  const auto error = [](const std::vector<std::string>& environment) {
    return run_on_terminal({"generate", "/nonexistent"}, "\x04", environment).out;
  };
  const std::string red = error({"NO_COLOR=", "TERM=xterm"});
  EXPECT_NE(red.find("\033[31m"), std::string::npos) << red;
  EXPECT_NE(red.find("\033[0m"), std::string::npos) << red;
  for (const char* unwanted : {"NO_COLOR=1", "TERM=dumb"}) {
    const std::string plain = error({"NO_COLOR=", "TERM=xterm", unwanted});
    EXPECT_EQ(plain.find("\033[3"), std::string::npos) << unwanted << "\n" << plain;
    EXPECT_NE(plain.find("found nothing at this path"), std::string::npos) << plain;
  }
}

TEST(Tokenize, RoundTrip) {
  const std::string text =
      "The capital of France is Paris.\n\n  naïve café — 東京 🙂\tend\n";
  const ToolRun ids = run_tool({"tokenize", model_path(), "--ids"}, {.input = text});
  ASSERT_EQ(ids.code, 0) << ids.err;
  const ToolRun back = run_tool({"tokenize", model_path(), "--decode"}, {.input = ids.out});
  ASSERT_EQ(back.code, 0) << back.err;
  EXPECT_EQ(back.out, text);

  const ToolRun json = run_tool({"tokenize", model_path(), "--json"}, {.input = text});
  ASSERT_EQ(json.code, 0) << json.err;
  const Json out = parse_json(json.out);
  EXPECT_EQ(out.find("text")->as_string(), text);
  std::string joined;
  for (const Json& id : out.find("ids")->as_array()) joined += std::to_string(id.as_int()) + " ";
  joined.back() = '\n';
  EXPECT_EQ(joined, ids.out);
}

TEST(Tokenize, LinesSpecialsAndIdsOnTheCommandLine) {
  const ToolRun lines = run_tool({"tokenize", model_path(), "-p", "Hi<|im_end|>"});
  ASSERT_EQ(lines.code, 0) << lines.err;
  EXPECT_NE(lines.out.find("   4093  \"<|im_end|>\"\n"), std::string::npos) << lines.out;
  EXPECT_EQ(run_tool({"tokenize", model_path(), "--decode", "4093"}).out, "<|im_end|>");
  EXPECT_EQ(run_tool({"tokenize", model_path(), "--no-special", "--decode", "4093"}).out, "");
  const ToolRun bad = run_tool({"tokenize", model_path(), "--decode", "5000000"});
  EXPECT_EQ(bad.code, 1);
  EXPECT_NE(bad.err.find("5000000"), std::string::npos) << bad.err;
}

TEST(Generate, StatsSayHowBusyTheDeviceWas) {
  const std::vector<std::string> args = {"generate", model_path(), "-p", kPrompt, "-n", "4", "--device", "cpu", "--stats", "--ignore-stop-tokens"};
  const ToolRun text = run_tool(args);
  ASSERT_EQ(text.code, 0) << text.err;
  for (const char* part : {"first      token after ", "busy       prompt ", " in 1 steps, new ", " in 3 steps", "of a traced run"}) {
    EXPECT_NE(text.err.find(part), std::string::npos) << part << "\n" << text.err;
  }
  std::vector<std::string> with_json = args;
  with_json.push_back("--json");
  const Json stats = *parse_json(run_tool(with_json).out).find("stats");
  EXPECT_GT(stats.find("time_to_first_token_seconds")->as_double(), 0);
  EXPECT_GT(stats.find("prompt_tokens_per_second")->as_double(), 0);
  EXPECT_GT(stats.find("new_tokens_per_second")->as_double(), 0);
  EXPECT_EQ(stats.find("steps")->as_int(), 4);
  EXPECT_GT(stats.find("launches")->as_int(), 400);
  EXPECT_EQ(stats.find("host_to_device_bytes")->as_int(), 0);
  EXPECT_EQ(stats.find("not_traced"), nullptr);
  EXPECT_EQ(stats.find("prompt_trace")->find("steps")->as_int(), 1);
  EXPECT_EQ(stats.find("new_trace")->find("steps")->as_int(), 3);
  EXPECT_GT(stats.find("new_trace")->find("busy_share")->as_double(), 0.1);
  with_json.erase(std::find(with_json.begin(), with_json.end(), "--stats"));
  EXPECT_EQ(parse_json(run_tool(with_json).out).find("stats"), nullptr) << "nobody asked";
}

// What is traced is bounded; the answer and its rate are not.
TEST(Generate, StatsOfALongAnswer) {
  const ToolRun run = run_tool({"generate", model_path(), "-p", kPrompt, "-n", "600", "--device", "cpu", "--stats", "--json",
                                "--ignore-stop-tokens"});
  ASSERT_EQ(run.code, 0) << run.err;
  const Json out = parse_json(run.out);
  EXPECT_EQ(out.find("new_tokens")->as_int(), 600);
  EXPECT_EQ(out.find("stats")->find("new_trace")->find("steps")->as_int(), 512);
  EXPECT_GT(out.find("stats")->find("new_tokens_per_second")->as_double(), 0);
  EXPECT_NE(run.err.find("(of the first 512 tokens)"), std::string::npos) << run.err;
}

}  // namespace
}  // namespace nibble::test
