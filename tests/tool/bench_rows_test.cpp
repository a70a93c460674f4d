// Rows of `nibble bench`: traced, too large, of mixed formats; and what `bench ops --op attention` refuses.
#include <gtest/gtest.h>

#include "tests/tool/run_tool.h"

namespace nibble::test {
namespace {

TEST(Bench, TracedRowsInJsonAndCsv) {
  const TempFolder folder;
  const auto with = [&](const char* format) {
    const ToolRun run = run_tool({"bench", model_path(), "-p", "64", "-n", "4", "-d", "70", "-b", "2", "-r", "1", "--no-roof",
                                  "--trace", (folder.path() / "trace.json").string(), "-o", format});
    EXPECT_EQ(run.code, 0) << run.err;
    return run.out;
  };
  const Json json = parse_json(with("json"));
  const Json::Array& rows = json.find("rows")->as_array();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].find("trace")->find("steps")->as_int(), 1);
  // Neither the depth's prompts nor the row that each decode starts from.
  EXPECT_EQ(rows[1].find("trace")->find("steps")->as_int(), 4);
  for (const Json& row : rows) {
    const Json& trace = *row.find("trace");
    EXPECT_GT(trace.find("busy_share")->as_double(), 0.1);
    EXPECT_LE(trace.find("busy_share")->as_double(), 1);
    EXPECT_GT(trace.find("kernels_per_step")->as_double(), 100);
    EXPECT_GE(trace.find("longest_stall_seconds")->as_double(), 0);
    EXPECT_EQ(trace.find("to_device_bytes")->as_int(), 0) << "a processor";
    double sum = 0;
    for (const auto& [name, share] : trace.find("class_shares")->as_object()) sum += share.as_double();
    EXPECT_NEAR(sum, 1, 1e-6);
    EXPECT_GT(trace.find("class_shares")->find("linear")->as_double(), 0);  // how much, a busy machine decides
  }
  const std::string csv = with("csv");
  EXPECT_NE(csv.find(",busy_share,kernels_per_step,longest_stall_seconds,to_device_bytes,to_host_bytes,linear_share,"
                     "attention_share,delta_net_share,norms_share,sampling_share,other_share,kv_cache_dtype\n"),
            std::string::npos)
      << csv;
  EXPECT_EQ(csv.find(",,,,,,,,,,,\n"), std::string::npos) << csv;
}

// 4,000,000 positions for each of 1,024 sequences are 2 TB.
TEST(Bench, RowsThatDoNotFitAreNamedOrLeftOut) {
  std::vector<std::string> args = {"bench", "--synthetic", "tiny", "-p", "64", "-n", "2", "-d", "4000000", "-b", "1024",
                                   "-r", "1", "--no-roof"};
  const ToolRun refused = run_tool(args);
  EXPECT_EQ(refused.code, 4) << refused.err;
  EXPECT_EQ(refused.out, "");
  for (const char* part : {"1 of 2 rows do not fit", "tg2 @ d4000000 batch 1024: ", " are needed", "1024 x 4000005 positions",
                           " are free", "--fit"}) {
    EXPECT_NE(refused.err.find(part), std::string::npos) << part << "\n" << refused.err;
  }
  args.insert(args.end(), {"--fit", "-o", "json"});
  const ToolRun fits = run_tool(args);
  ASSERT_EQ(fits.code, 0) << fits.err;
  const Json out = parse_json(fits.out);
  ASSERT_EQ(out.find("rows")->as_array().size(), 1u);
  EXPECT_EQ(out.find("rows")->as_array()[0].find("test")->as_string(), "pp64");
  ASSERT_EQ(out.find("header")->find("left_out")->as_array().size(), 1u);
  EXPECT_NE(fits.err.find("left out: tg2 @ d4000000 batch 1024"), std::string::npos) << fits.err;
  EXPECT_EQ(run_tool({"bench", "--synthetic", "tiny", "-p", "0", "-n", "2", "-d", "4000000", "-b", "1024", "--fit"}).code, 4)
      << "none is left";
  const ToolRun beyond = run_tool({"bench", "--synthetic", "tiny", "-p", "0", "-n", "2", "-d", "16000000", "-b", "1024"});
  EXPECT_EQ(beyond.code, 2) << beyond.err;
  EXPECT_NE(beyond.err.find("tg2 @ d16000000 batch 1024 needs"), std::string::npos) << beyond.err;
}

// A mix of formats, in every shape that has both an MLP and a mixer.
TEST(Bench, MixedFormatsAreServedAndSaid) {
  for (const char* shape : {"tiny", "tiny-qwen3", "tiny-moe"}) {
    for (const char* format : {"md", "json", "csv"}) {
      const ToolRun run = run_tool({"bench", "--synthetic", shape, "--mix", "mlp-nvfp4-rest-fp8", "-p", "64", "-n", "2", "-d",
                                    "0,70", "-b", "1,3", "-r", "1", "--no-roof", "-o", format});
      ASSERT_EQ(run.code, 0) << run.err;
      EXPECT_NE(run.out.find("mlp-nvfp4-rest-fp8"), std::string::npos) << run.out;
      if (std::string(format) == "json") {
        EXPECT_EQ(parse_json(run.out).find("header")->find("mix")->as_string(), "mlp-nvfp4-rest-fp8");
      }
    }
  }
}

TEST(BenchOps, AttentionChecksItsOptions) {
  const auto refused = [](std::vector<std::string> more, const char* part) {
    std::vector<std::string> args = {"bench", "ops", "--op"};
    args.insert(args.end(), more.begin(), more.end());
    const ToolRun run = run_tool(args, {.environment = {"CUDA_VISIBLE_DEVICES="}});
    EXPECT_EQ(run.code, 2) << run.err;
    EXPECT_EQ(run.out, "");
    EXPECT_NE(run.err.find(part), std::string::npos) << run.err;
  };
  refused({"attention", "--device", "cpu"}, "bench ops: expected a CUDA device");
  refused({"attention", "--device", "cpu", "--depth", "4096", "--sequences", "1,8"}, "expected a CUDA device");
  refused({"attention", "--device", "cpu", "--shapes", "24x4x256,8x8x64", "-t", "512"}, "expected a CUDA device");
  for (const char* shapes : {"24x5x256", "24x4", "24x4x256x1", "x4x256", "24x0x256", "27", ""}) {
    refused({"attention", "--device", "cpu", "--shapes", shapes}, "--shapes: expected 27b, 27b-tp2, 27b-tp4 or QxKVxD");
  }
  refused({"attention", "--device", "cpu", "-t", ""}, "--tokens");
  refused({"attention", "--device", "cpu", "--depth", "0"}, "--depth");
  refused({"attention", "--formats", "nvfp4"}, "expected no --formats");
  refused({"attention", "--tiles"}, "expected no --tiles");
  refused({"linear", "--depth", "5"}, "expected no --depth, which is of attention");
  refused({"pack", "--sequences", "5"}, "expected no --sequences, which is of delta and attention");
}

}  // namespace
}  // namespace nibble::test
