// What rows of a bench must move and compute, and the roofs that follow, in known numbers.
#include <gtest/gtest.h>

#include "core/base/json.h"
#include "tools/bench_plan.h"
#include "tools/bench_report.h"
#include "tools/row_work.h"

namespace nibble::test {
namespace {

using tool::BenchCase;
using tool::RowRoof;
using tool::RowWork;

// Two layers, one of each kind.
ModelInfo small() {
  ModelInfo info;
  info.backend = "cuda";
  info.profile = "sm90";
  info.activations = "a16";
  info.attention.layers = 1;
  info.attention.heads = 4;
  info.attention.kv_heads = 2;
  info.attention.head_dim = 8;
  info.delta_net = {.layers = 1, .key_heads = 1, .value_heads = 3, .key_dim = 10, .value_dim = 20, .conv_kernel = 4};
  info.body = {.parameters = 1000, .bytes = 500};
  info.head = {.parameters = 100, .bytes = 50};
  return info;
}

BenchCase prefill(std::int64_t tokens) { return {BenchCase::Kind::prefill, tokens, 0, 1}; }
BenchCase decode(std::int64_t tokens, std::int64_t depth, int batch) {
  return {BenchCase::Kind::decode, tokens, depth, batch};
}

constexpr double kState = 2 * 4 * 3 * 10 * 20;  // of a sequence, read and written

TEST(RowWork, Decode) {
  // Steps of 5 tokens behind 100 see 103 to 107 keys; behind nothing 2 to 6.
  const RowWork deep = tool::work_of(small(), decode(5, 100, 3), 32, 2048);
  EXPECT_DOUBLE_EQ(deep.tokens, 3);
  EXPECT_DOUBLE_EQ(deep.bytes, 550 + 3 * 105 * 32 + 3 * kState);
  EXPECT_DOUBLE_EQ(deep.linear_flops, 2 * 3 * 1100);
  EXPECT_DOUBLE_EQ(deep.attention_flops, 3 * 105 * 4 * 4 * 8);
  EXPECT_DOUBLE_EQ(tool::work_of(small(), decode(5, 0, 1), 32, 2048).bytes, 550 + 4 * 32 + kState);
}

TEST(RowWork, PrefillInSteps) {
  const RowWork once = tool::work_of(small(), prefill(64), 32, 2048);
  EXPECT_DOUBLE_EQ(once.tokens, 64);
  EXPECT_DOUBLE_EQ(once.bytes, 550 + 64 * 32 + kState);
  EXPECT_DOUBLE_EQ(once.linear_flops, 2 * (64 * 1000 + 100)) << "the head serves one row";
  EXPECT_DOUBLE_EQ(once.attention_flops, 4 * 4 * 8 * 64.0 * 64 / 2);
  // Each step reads the weights again, and the keys up to its end.
  const RowWork thrice = tool::work_of(small(), prefill(300), 32, 128);
  EXPECT_DOUBLE_EQ(thrice.bytes, 3 * (550 + kState) + (128 + 256 + 300) * 32);
}

TEST(RowWork, ExpertsAsFarAsRowsReachThem) {
  ModelInfo info = small();
  info.experts = {.layers = 1, .experts = 4, .per_token = 1, .intermediate = 8, .parameters = 400, .active_parameters = 100,
                  .active_bytes = 60};
  const double state = kState, kv = 2 * 32;
  EXPECT_DOUBLE_EQ(tool::work_of(info, decode(1, 0, 1), 32, 2048).bytes, 550 + kv + state);
  // Two rows reach 4 (1 - (3/4)^2) = 1.75 of them.
  EXPECT_DOUBLE_EQ(tool::work_of(info, decode(1, 0, 2), 32, 2048).bytes, 550 - 60 + 60 * 1.75 + 2 * (kv + state));
}

TEST(RowRoof, IsTheLongerOfBothTimes) {
  const DeviceRoofs rates{.copy_bytes_per_second = 1e6, .copy = "copies", .matrix_flops_per_second = 1e9, .matrix = "cuBLAS",
                          .fp8_flops_per_second = 2e9, .fp8 = "cuBLASLt"};
  RowWork work{.bytes = 4e5, .linear_flops = 1e8, .attention_flops = 1e8, .tokens = 10};
  RowRoof roof = tool::roof_of(small(), decode(5, 0, 10), work, rates);
  EXPECT_DOUBLE_EQ(roof.tokens_per_second, 10 / 0.4);
  EXPECT_EQ(roof.text, "bytes / copies");
  work.linear_flops = 9e8;
  roof = tool::roof_of(small(), prefill(10), work, rates);
  EXPECT_DOUBLE_EQ(roof.tokens_per_second, 10 / 1.0);
  EXPECT_EQ(roof.text, "operations / bf16");
  ModelInfo a8 = small();
  a8.activations = "a8";
  roof = tool::roof_of(a8, prefill(10), work, rates);
  EXPECT_DOUBLE_EQ(roof.tokens_per_second, 10 / (0.45 + 0.1));
  EXPECT_EQ(roof.text, "operations / fp8 and bf16");
}

TEST(RowRoof, WhatWasNotMeasuredIsSaid) {
  const RowWork work{.bytes = 4e5, .linear_flops = 1e8, .attention_flops = 1e8, .tokens = 10};
  const DeviceRoofs copies{.copy_bytes_per_second = 1e6, .copy = "copies", .matrix = "no library", .fp8 = "no unit"};
  EXPECT_DOUBLE_EQ(tool::roof_of(small(), decode(5, 0, 10), work, copies).tokens_per_second, 25) << "their bytes";
  const RowRoof prompt = tool::roof_of(small(), prefill(10), work, copies);
  EXPECT_EQ(prompt.tokens_per_second, 0);
  EXPECT_NE(prompt.text.find("no library"), std::string::npos) << prompt.text;
  ModelInfo a8 = small();
  a8.activations = "a8";
  const DeviceRoofs bf16{.copy_bytes_per_second = 1e6, .matrix_flops_per_second = 1e9, .matrix = "cuBLAS", .fp8 = "no unit"};
  EXPECT_NE(tool::roof_of(a8, prefill(10), work, bf16).text.find("no unit"), std::string::npos);
  ModelInfo fp4 = small();
  fp4.profile = "sm120";
  fp4.activations = "declared";
  EXPECT_NE(tool::roof_of(fp4, prefill(10), work, bf16).text.find("FP4"), std::string::npos);
  const DeviceRoofs none{.copy = "no memory"};
  EXPECT_NE(tool::roof_of(small(), decode(5, 0, 1), work, none).text.find("no memory"), std::string::npos);
}

TEST(RowRoof, OnlyACardsAreMeasuredSo) {
  try {
    measure_roofs(Device::cpu());
    FAIL() << "expected a refusal";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::no_device);
    EXPECT_NE(std::string(e.what()).find("roofs: expected a CUDA device"), std::string::npos) << e.what();
  }
}

TEST(RowRoof, MediansOfWhatWasMeasured) {
  std::vector<DeviceRoofs> samples(4);
  samples[0].copy_bytes_per_second = 3;
  samples[1].copy_bytes_per_second = 1;
  samples[2].copy_bytes_per_second = 2;
  samples[3].copy = "no memory";
  samples[0].matrix = "none";
  samples[2].matrix_flops_per_second = 7;
  samples[2].matrix = "cuBLAS";
  const DeviceRoofs median = tool::median_roofs(samples);
  EXPECT_EQ(median.copy_bytes_per_second, 2);
  EXPECT_EQ(median.matrix_flops_per_second, 7);
  EXPECT_EQ(median.matrix, "cuBLAS");
  EXPECT_EQ(median.fp8_flops_per_second, 0);
}

tool::BenchReport card_report() {
  tool::BenchReport report;
  report.model = "shape";
  report.mix = "nvfp4";
  report.info = small();
  report.kv_position_bytes = 32;
  report.step_tokens = 2048;
  report.roof_samples = 3;
  report.card = DeviceRoofs{.copy_bytes_per_second = 1e6, .copy = "copies", .matrix = "no library", .fp8 = "not asked for"};
  report.results = {{.what = decode(5, 0, 1), .samples = {100}, .mean = 100},
                    {.what = prefill(64), .samples = {9}, .mean = 9}};
  report.results[0].traced = tool::TraceSummary{.steps = 5, .busy_share = 0.5, .kernels_per_step = 7,
                                                .longest_stall_seconds = 1e-3, .to_device_bytes = 11, .to_host_bytes = 12};
  for (const std::string_view name : op_classes()) report.results[0].traced->class_shares.emplace_back(name, 0.25);
  return report;
}

TEST(CardReport, RoofsAndTraceInEveryFormat) {
  const tool::BenchReport report = card_report();
  const double roof = 1e6 / (550 + 4 * 32 + kState);
  const Json json = Json::parse(report.json(), "report");
  EXPECT_EQ(json.find("header")->find("mix")->as_string(), "nvfp4");
  EXPECT_EQ(json.find("header")->find("card_roofs")->find("samples")->as_int(), 3);
  EXPECT_TRUE(json.find("header")->find("card_roofs")->find("matrix_flops_per_second")->is_null());
  EXPECT_EQ(json.find("header")->find("roof"), nullptr) << "a processor's";
  const Json::Array& rows = json.find("rows")->as_array();
  EXPECT_NEAR(rows[0].find("roof_tokens_per_second")->as_double(), roof, 1e-9 * roof);
  EXPECT_NEAR(rows[0].find("roof_part")->as_double(), 100 / roof, 1e-9);
  EXPECT_EQ(rows[0].find("trace")->find("kernels_per_step")->as_double(), 7);
  EXPECT_EQ(rows[1].find("roof_part"), nullptr);
  EXPECT_NE(rows[1].find("no_roof")->as_string().find("no library"), std::string::npos);
  EXPECT_EQ(rows[1].find("trace"), nullptr);

  const std::string md = report.markdown(), csv = report.csv();
  EXPECT_NE(md.find("TFLOP/s bf16 not measured: no library"), std::string::npos) << md;
  EXPECT_NE(md.find("bytes / copies"), std::string::npos) << md;
  EXPECT_NE(md.find("with weights nvfp4"), std::string::npos) << md;
  EXPECT_NE(csv.find(",mix,copy_bytes_per_second,matrix_flops_per_second,fp8_flops_per_second,roof_tokens_per_second,roof,"
                     "busy_share,kernels_per_step,longest_stall_seconds,to_device_bytes,to_host_bytes,linear_share,"),
            std::string::npos)
      << csv;
  EXPECT_NE(csv.find(",nvfp4,1e+06,,,"), std::string::npos) << csv;
  EXPECT_NE(csv.find(",bytes / copies,0.5000,7,0.001,11,12,0.2500,"), std::string::npos) << csv;
}

TEST(BenchPlan, RoomForEachRowAtATime) {
  const std::vector<BenchCase> cases = {prefill(100), decode(10, 16384, 1), decode(10, 0, 64)};
  const LoadOptions how = tool::sized_for({}, cases);
  EXPECT_EQ(how.max_sequences, 64);
  EXPECT_EQ(how.kv_tokens, 16384 + 64) << "one of the depth, or 64 of 64 positions";
  ModelInfo info;
  info.kv_bytes = 1000 * 16448;
  EXPECT_DOUBLE_EQ(tool::kv_position_bytes(info, how), 1000);
}

TEST(BenchPlan, RowsThatDoNotFitAreNamed) {
  const std::vector<BenchCase> cases = {prefill(100), decode(10, 1000, 8), decode(10, 16384, 1)};
  const auto inspect = [](const LoadOptions& how) {
    ModelInfo info;
    info.weight_bytes = 1'000'000;
    info.kv_bytes = static_cast<std::uint64_t>(how.kv_tokens) * 100;
    info.free_bytes = 2'000'000;
    return info;
  };
  const std::vector<tool::Misfit> rows = tool::misfits({}, cases, inspect);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].row, 2u);
  for (const char* part : {"tg10 @ d16384 batch 1: ", " are needed", "1 x 16397 positions", " are free"}) {
    EXPECT_NE(rows[0].text.find(part), std::string::npos) << rows[0].text;
  }
}

}  // namespace
}  // namespace nibble::test
