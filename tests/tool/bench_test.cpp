// `nibble bench` and `perplexity`, and checkpoints that are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/tool/run_tool.h"

namespace nibble::test {
namespace {

const std::vector<std::string> kTinyBench = {"bench", model_path(), "-p", "64",  "-n", "4",
                                             "-d",    "0,70",       "-b", "1,3", "-r", "2"};

ToolRun bench(const std::string& output) {
  std::vector<std::string> args = kTinyBench;
  args.insert(args.end(), {"-o", output});
  return run_tool(args);
}

TEST(Bench, TraceIsAFileAndASummary) {
  const std::string file = std::filesystem::temp_directory_path() / "nibble-bench-trace.json";
  std::vector<std::string> args = {"bench", model_path(), "-p", "64", "-n", "4", "-d", "0", "-r", "1",
                                   "-b", "2", "--no-roof", "--trace", file};
  const ToolRun run = run_tool(args);
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.out.find("| kernel or op"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("| linear "), std::string::npos) << run.out;
  std::ifstream stream(file);
  const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  const Json trace = parse_json(text);
  std::size_t linears = 0;
  double last = -1;
  for (const Json& e : trace.find("traceEvents")->as_array()) {
    EXPECT_GE(e.find("ts")->as_double(), last);
    last = e.find("ts")->as_double();
    EXPECT_GE(e.find("dur")->as_double(), 0);
    EXPECT_FALSE(e.find("args")->find("op")->as_string().empty());
    linears += e.find("name")->as_string() == "linear";
  }
  EXPECT_GT(linears, 5u * 8);  // five steps of eight layers
  std::filesystem::remove(file);
  std::ofstream(file) << "precious";
  std::vector<std::string> refused_device = args;
  refused_device.insert(refused_device.end(), {"--kernels", "foo"});
  EXPECT_EQ(run_tool(refused_device).code, 2);
  std::ifstream kept(file);
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(kept)), std::istreambuf_iterator<char>()), "precious");
  std::filesystem::remove(file);
  args.back() = "/nowhere/at/all.json";
  const ToolRun refused = run_tool(args);
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("cannot be written"), std::string::npos) << refused.err;
  EXPECT_EQ(refused.out, "");
}

TEST(Bench, Json) {
  const ToolRun run = bench("json");
  ASSERT_EQ(run.code, 0) << run.err;
  const Json out = parse_json(run.out);
  const Json& header = *out.find("header");
  EXPECT_GT(header.find("roof")->find("read_bytes_per_second")->as_double(), 1e8);
  EXPECT_GT(header.find("roof")->find("float_flops_per_second")->as_double(), 1e8);
  EXPECT_GT(header.find("step_weight_bytes")->as_int(), 4'000'000);
  EXPECT_LT(header.find("step_weight_bytes")->as_int(), header.find("weight_bytes")->as_int());
  std::vector<std::string> names;
  for (const Json& row : out.find("rows")->as_array()) {
    names.push_back(row.find("test")->as_string() + " b" +
                    std::to_string(row.find("batch")->as_int()));
    const Json::Array& samples = row.find("samples")->as_array();
    ASSERT_EQ(samples.size(), 2u);
    const double a = samples[0].as_double(), b = samples[1].as_double();
    EXPECT_NEAR(row.find("tokens_per_second")->as_double(), (a + b) / 2, 1e-6 * a);
    EXPECT_NEAR(row.find("deviation")->as_double(), std::abs(a - b) / std::sqrt(2.0), 1e-6 * a);
    EXPECT_GT(row.find("roof_part")->as_double(), 0);
  }
  const std::vector<std::string> expected = {"pp64 b1", "tg4 b1", "tg4 b3", "tg4 @ d70 b1",
                                             "tg4 @ d70 b3"};
  EXPECT_EQ(names, expected);
}

TEST(Bench, Markdown) {
  const ToolRun run = bench("md");
  ASSERT_EQ(run.code, 0) << run.err;
  for (const char* part : {"| test", "| pp64 ", "| tg4 @ d70 ", " ± ", " %", "GB/s reads",
                           "GFLOP/s float32", "weights: "}) {
    EXPECT_NE(run.out.find(part), std::string::npos) << part << "\n" << run.out;
  }
}

TEST(Bench, Csv) {
  const ToolRun run = bench("csv");
  ASSERT_EQ(run.code, 0) << run.err;
  std::istringstream lines(run.out);
  std::string line;
  std::size_t count = 0, commas = 0;
  while (std::getline(lines, line)) {
    const auto here = static_cast<std::size_t>(std::count(line.begin(), line.end(), ','));
    if (count == 0) {
      EXPECT_TRUE(line.starts_with("model,backend,device,")) << line;
      commas = here;
    }
    EXPECT_GE(here, commas) << line;
    ++count;
  }
  EXPECT_EQ(count, 6u);
}

// Ctrl-C in the second row keeps the first.
TEST(Bench, InterruptReportsTheRowsThatAreFinished) {
  for (const char* format : {"md", "csv", "json"}) {
    const ToolRun run = run_tool({"bench", model_path(), "-p", "64", "-n", "3000", "-d", "0", "-b", "1",
                                  "-r", "1", "--no-roof", "-v", "-o", format},
                                 {.interrupt_when = "pp64 batch 1: "});
    EXPECT_EQ(run.code, 130) << run.err;
    EXPECT_NE(run.out.find("pp64"), std::string::npos) << run.out;
    EXPECT_EQ(run.out.find("tg3000"), std::string::npos) << run.out;
    EXPECT_NE(run.err.find("interrupted in tg3000 batch 1: 1 of 2 rows are finished"), std::string::npos)
        << run.err;
    if (std::string(format) == "json") {
      EXPECT_EQ(parse_json(run.out).find("rows")->as_array().size(), 1u);
    }
  }
}

TEST(BenchOps, WithoutACardSaysSo) {
  const ToolRun named = run_tool({"bench", "ops", "--device", "cuda"}, {.environment = {"CUDA_VISIBLE_DEVICES="}});
  EXPECT_EQ(named.code, 2) << named.err;
  EXPECT_EQ(named.out, "");
  EXPECT_TRUE(named.err.starts_with("nibble: [cuda] ")) << named.err;
  EXPECT_EQ(std::count(named.err.begin(), named.err.end(), '\n'), 1) << named.err;
  const ToolRun grouped =
      run_tool({"bench", "ops", "--op", "grouped", "--device", "cpu"}, {.environment = {"CUDA_VISIBLE_DEVICES="}});
  EXPECT_EQ(grouped.code, 2) << grouped.err;
  EXPECT_NE(grouped.err.find("bench ops: expected a CUDA device"), std::string::npos) << grouped.err;
  // What is best there is the processor: it is not taken silently.
  const ToolRun best = run_tool({"bench", "ops"}, {.environment = {"CUDA_VISIBLE_DEVICES="}});
  EXPECT_EQ(best.code, 2) << best.err;
  EXPECT_NE(best.err.find("bench ops: expected a CUDA device"), std::string::npos) << best.err;
}

TEST(BenchOps, MeasuresPackingOnTheCpu) {
  for (const std::string device : {"cpu:threads=2", "cpu:mirror=sm90,threads=2"}) {
    const std::vector<std::string> args = {"bench", "ops", "--op", "pack", "--device", device, "--formats",
                                           "nvfp4_static,fp8_token_group128", "-t", "1,3", "-r", "2", "-o"};
    const auto with = [&](const char* format) {
      std::vector<std::string> all = args;
      all.push_back(format);
      const ToolRun run = run_tool(all);
      EXPECT_EQ(run.code, 0) << run.err;
      return run.out;
    };
    const Json json = parse_json(with("json"));
    const auto& rows = json.find("rows")->as_array();
    ASSERT_EQ(rows.size(), 12u) << "three ops, two formats, two T";
    EXPECT_EQ(rows[0].find("made_by")->as_string(), "rms_norm");
    EXPECT_EQ(rows[11].find("made_by")->as_string(), "swiglu");
    for (const Json& row : rows) {
      EXPECT_GT(row.find("alone_seconds")->as_double(), 0);
      EXPECT_GT(row.find("fused_over_alone")->as_double(), 0);
      EXPECT_EQ(row.find("fused_samples")->as_array().size(), 2u);
    }
    EXPECT_NE(with("md").find("fused over alone"), std::string::npos);
    const std::string csv = with("csv");
    EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 13) << csv;
  }
}

TEST(Bench, InterruptBeforeTheFirstRowSaysNothingOnStdout) {
  const ToolRun run = run_tool({"bench", model_path(), "-p", "0", "-n", "3000", "-d", "0", "-b", "1", "-r",
                                "10000", "--no-roof", "-v"},
                               {.interrupt_when = "loaded in"});
  EXPECT_EQ(run.code, 130) << run.err;
  EXPECT_EQ(run.out, "");
}

TEST(Bench, TimeBoundsTheRepetitionsUnlessTheirNumberIsGiven) {
  const auto samples = [](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"bench", model_path(), "-p", "64", "-n", "0",
                                     "-o",    "json",       "--no-roof"};
    args.insert(args.end(), more.begin(), more.end());
    const ToolRun run = run_tool(args);
    EXPECT_EQ(run.code, 0) << run.err;
    return parse_json(run.out).find("rows")->as_array().at(0).find("samples")->as_array().size();
  };
  EXPECT_EQ(samples({"--row-seconds", "0"}), 1u);
  EXPECT_EQ(samples({"-r", "7"}), 7u);
  EXPECT_EQ(samples({"-r", "7", "--row-seconds", "0"}), 1u);
  EXPECT_EQ(samples({"--row-seconds", "1000"}), 5u);
}

TEST(Bench, SyntheticShapeNeedsNoFiles) {
  const ToolRun run = run_tool(
      {"bench", "--synthetic", "tiny", "--layers", "2",    "--mix",    "mlp-nvfp4-rest-fp8",
       "-p",    "64",          "-n",   "2",        "-d",   "0",        "-b",
       "1",     "-r",          "1",    "-o",       "json", "--no-roof"});
  ASSERT_EQ(run.code, 0) << run.err;
  const Json out = parse_json(run.out);
  EXPECT_EQ(out.find("header")->find("layers")->as_int(), 2);
  EXPECT_EQ(out.find("header")->find("roof"), nullptr);
  EXPECT_EQ(out.find("rows")->as_array().size(), 2u);
}

TEST(Perplexity, WindowsAndErrors) {
  std::string text;
  for (int i = 0; i < 4; ++i)
    text += "The capital of France is Paris.\nThe capital of Germany is Berlin.\n";
  const TempFolder folder;
  const std::string file = folder.write("text.txt", text);
  const auto measured = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"perplexity", model_path(), "-f", file, "--json"};
    args.insert(args.end(), more.begin(), more.end());
    const ToolRun run = run_tool(args);
    EXPECT_EQ(run.code, 0) << run.err;
    return parse_json(run.out);
  };
  const Json whole = measured({});
  const std::int64_t tokens = whole.find("tokens")->as_int();
  EXPECT_GT(tokens, 40);
  EXPECT_EQ(whole.find("scored")->as_int(), tokens - 1);
  EXPECT_EQ(whole.find("windows")->as_int(), 1);
  const double perplexity = whole.find("perplexity")->as_double();
  EXPECT_NEAR(perplexity, std::exp(whole.find("mean_nll")->as_double()), 1e-9 * perplexity);
  EXPECT_GT(perplexity, 1.0);
  EXPECT_LT(perplexity, 30.0);
  EXPECT_NEAR(whole.find("perplexity_stderr")->as_double(),
              perplexity * whole.find("mean_nll_stderr")->as_double(), 1e-9);

  // Windows of 16 that do not overlap lose their first tokens; overlapping ones lose only the
  // text's.
  const Json apart = measured({"--context", "16"});
  EXPECT_EQ(apart.find("windows")->as_int(), (tokens + 15) / 16 - (tokens % 16 == 1 ? 1 : 0));
  EXPECT_EQ(apart.find("scored")->as_int(), tokens - (tokens + 15) / 16);
  const Json overlapping = measured({"--context", "16", "--stride", "8"});
  EXPECT_EQ(overlapping.find("scored")->as_int(), tokens - 1);
  EXPECT_LT(perplexity, apart.find("perplexity")->as_double())
      << "more context predicts better here";

  // A window may fill every position of the model.
  std::string much;
  while (much.size() < 40000) much += text;
  const ToolRun full =
      run_tool({"perplexity", model_path(), "--context", "4096", "--json"}, {.input = much});
  ASSERT_EQ(full.code, 0) << full.err;
  EXPECT_GT(parse_json(full.out).find("tokens")->as_int(), 4096);
  EXPECT_EQ(parse_json(full.out).find("context")->as_int(), 4096);

  // Keys and values in fp8 predict a little otherwise.
  const double in_fp8 = measured({"--kv-cache-dtype", "fp8"}).find("perplexity")->as_double();
  std::printf("perplexity %.6f, with keys and values in fp8 %.6f\n", perplexity, in_fp8);
  EXPECT_NE(in_fp8, perplexity);
  EXPECT_LT(in_fp8, 30.0);

  const ToolRun text_run = run_tool({"perplexity", model_path(), "-f", file});
  EXPECT_NE(text_run.out.find("perplexity  "), std::string::npos) << text_run.out;
  EXPECT_NE(text_run.out.find(" ± "), std::string::npos) << text_run.out;
  // Beside another device: nothing differs from oneself, everything from another profile, by little.
  const Json itself = *measured({"--device", "cpu", "--against", "cpu"}).find("against");
  EXPECT_EQ(itself.find("perplexity")->as_double(), perplexity);
  EXPECT_EQ(itself.find("percent")->as_double(), 0);
  EXPECT_EQ(itself.find("differing_tokens")->as_int(), 0);
  const Json mirror = measured({"--device", "cpu:mirror=sm90", "--against", "cpu"});
  const double other = mirror.find("against")->find("perplexity")->as_double();
  EXPECT_EQ(other, perplexity);
  EXPECT_NEAR(mirror.find("against")->find("percent")->as_double(), 100 * (mirror.find("perplexity")->as_double() / other - 1), 1e-6);
  EXPECT_LT(std::abs(mirror.find("against")->find("percent")->as_double()), 0.5);
  EXPECT_GT(mirror.find("against")->find("differing_tokens")->as_int(), 0);
  const Json codes = *measured({"--device", "cpu", "--kv-cache-dtype", "fp8", "--against", "cpu", "--against-kv-cache-dtype", "fp8"}).find("against");
  EXPECT_EQ(codes.find("differing_tokens")->as_int(), 0);
  EXPECT_EQ(codes.find("kv_cache_dtype")->as_string(), "fp8");
  const ToolRun words = run_tool({"perplexity", model_path(), "-f", file, "--device", "cpu", "--activations", "declared", "--against", "cpu"});
  EXPECT_EQ(words.code, 0) << words.err;
  EXPECT_NE(words.out.find("on cpu, activations a16: "), std::string::npos) << words.out;
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"--against-activations", "a8"}, {"--against-kv-cache-dtype", "fp8"}, {"--against", "cqu"}, {"--against", ""}}) {
    std::vector<std::string> args = {"perplexity", model_path(), "-f", file};
    args.insert(args.end(), wrong.begin(), wrong.end());
    const ToolRun refused = run_tool(args);
    EXPECT_NE(refused.code, 0) << wrong[0];
    EXPECT_EQ(refused.out, "") << wrong[0];
    EXPECT_NE(refused.err.find("expected"), std::string::npos) << refused.err;
  }

  const ToolRun empty = run_tool({"perplexity", model_path(), "-p", "The"});
  EXPECT_EQ(empty.code, 2);
  EXPECT_NE(empty.err.find("expected a text of at least 2 tokens, found 1"), std::string::npos)
      << empty.err;
}

// A copy of the model's folder in which one file can be changed.
class DamagedModel {
 public:
  DamagedModel() {
    for (const auto& entry : std::filesystem::directory_iterator(model_path())) {
      std::filesystem::copy_file(entry.path(), folder_.path() / entry.path().filename());
    }
  }
  std::filesystem::path file(const std::string& name) const { return folder_.path() / name; }
  std::string path() const { return folder_.path().string(); }
  std::filesystem::path shard() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      if (entry.path().extension() == ".safetensors") found.push_back(entry.path());
    }
    return *std::min_element(found.begin(), found.end());
  }
  const TempFolder& folder() const { return folder_; }

 private:
  TempFolder folder_;
};

// `parts`: the file, what was expected of it and what was found.
void expect_refused(const DamagedModel& model, const std::vector<std::string>& parts) {
  for (const char* command : {"inspect", "generate"}) {
    std::vector<std::string> args = {command, model.path()};
    if (std::string(command) == "generate") args.insert(args.end(), {"-p", "The"});
    const ToolRun run = run_tool(args);
    EXPECT_EQ(run.code, 3) << command << "\n" << run.err;
    EXPECT_EQ(run.out, "") << command;
    EXPECT_TRUE(run.err.starts_with("nibble: ")) << run.err;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
    for (const std::string& part : parts) {
      EXPECT_NE(run.err.find(part), std::string::npos) << "no \"" << part << "\" in: " << run.err;
    }
  }
}

TEST(Refusal, TruncatedShard) {
  const DamagedModel model;
  const auto shard = model.shard();
  std::filesystem::permissions(shard, std::filesystem::perms::owner_write,
                               std::filesystem::perm_options::add);
  const auto bytes = std::filesystem::file_size(shard) - 1000;
  std::filesystem::resize_file(shard, bytes);
  std::uint64_t header = 0;
  std::ifstream(shard, std::ios::binary).read(reinterpret_cast<char*>(&header), sizeof header);
  const auto data = bytes - 8 - header;
  expect_refused(model, {shard.filename().string(), "data_offsets [", "end beyond the data",
                         "truncated, it holds " + std::to_string(data) + " bytes of data"});
}

TEST(Refusal, ShardThatIsAbsent) {
  const DamagedModel model;
  const auto shard = model.shard();
  std::filesystem::remove(shard);
  expect_refused(model, {shard.filename().string(), "shard named by model.safetensors.index.json for",
                         "does not exist"});
}

TEST(Refusal, BrokenConfig) {
  const DamagedModel model;
  std::filesystem::remove(model.file("config.json"));
  model.folder().write("config.json", "{\"model_type\": \"qwen3_5\", ");
  expect_refused(model, {"config.json", "JSON", "unexpected end of input"});
}

TEST(Refusal, NoTokenizer) {
  const DamagedModel model;
  std::filesystem::remove(model.file("tokenizer.json"));
  const ToolRun run = run_tool({"generate", model.path(), "-p", "The", "-q"});
  EXPECT_EQ(run.code, 3) << run.err;
  EXPECT_NE(run.err.find("expected a model with tokenizer.json, found none"), std::string::npos)
      << run.err;
}

TEST(Refusal, UnknownArchitectureNamesTheKnown) {
  const DamagedModel model;
  std::filesystem::remove(model.file("config.json"));
  model.folder().write("config.json", "{\"model_type\": \"mamba\"}");
  expect_refused(model, {"config.json: model_type", "is called \"mamba\"", "known are qwen3_5"});
}

TEST(Refusal, MoreMemoryThanThereIs) {
  const ToolRun run =
      run_tool({"generate", model_path(), "-p", "The", "--kv-tokens", "2000000000"});
  EXPECT_EQ(run.code, 4) << run.err;
  EXPECT_NE(run.err.find("kv_tokens"), std::string::npos) << run.err;
}

}  // namespace
}  // namespace nibble::test
