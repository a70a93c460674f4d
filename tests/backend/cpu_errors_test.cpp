// What does not fit is refused with a reason, and nothing of the state moves.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <tuple>

#include "backends/cpu/cpu_backend.h"
#include "nibble/error.h"
#include "tests/backend/toy.h"

namespace nibble::cpu {
namespace {

using test::ToySizes;

struct Complaint {
  ErrorCode code = ErrorCode::not_found;
  std::string text;
};

Complaint complaint(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return {e.code(), e.what()};
  }
  return {};
}

class CpuErrors : public testing::Test {
 protected:
  void SetUp() override { backend.prepare(test::toy_model(sizes), test::toy_state(sizes), {}); }

  // Two decode rows and a prefill: slot 0 and 1 have pending rows, slot 2 is new.
  Batch good() const {
    Batch b;
    b.tokens = {1, 2, 3, 4, 5};
    b.ranges = {{Section::decode, 0, 0, 1, 2, 1, 0},
                {Section::decode, 1, 1, 1, 2, 1, 1},
                {Section::prefill, 2, 2, 3, 0, 0, 2}};
    b.pages = {0, 1, 2};
    b.output_rows = {0, 1, 4};
    b.sampling.resize(3);
    b.sampling[1].slot = 1;
    b.sampling[2].slot = 2;
    return b;
  }
  static void start(CpuBackend& on) {
    StepOutput step;
    Batch b;
    b.tokens = {1, 2};
    b.ranges = {{Section::prefill, 0, 0, 1, 0, 0, 0}, {Section::prefill, 1, 1, 1, 0, 0, 1}};
    b.pages = {0, 1};
    on.run(test::kMixed, b, step, {});
    b.ranges = {{Section::decode, 0, 0, 1, 1, 0, 0}, {Section::decode, 1, 1, 1, 1, 0, 1}};
    on.run(test::kDecode, b, step, {});
  }

  ToySizes sizes;
  CpuBackend backend{{1, ""}};
  StepOutput out;
};

struct BadBatch {
  const char* name;
  ErrorCode code;
  const char* says;
  std::function<void(Batch&)> spoil;
};

const std::vector<BadBatch>& bad_batches() {
  constexpr auto kArgument = ErrorCode::invalid_argument, kInternal = ErrorCode::internal;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  static const std::vector<BadBatch> all = {
      {"empty", kInternal, "rows: expected 1 to 256, found 0", [](Batch& b) { b = {}; }},
      {"token_high", kArgument, "tokens[3]: expected 0 to 299, found 300",
       [](Batch& b) { b.tokens[3] = 300; }},
      {"token_negative", kArgument, "tokens[0]", [](Batch& b) { b.tokens[0] = -1; }},
      {"slot_high", kInternal, "ranges[1].slot", [](Batch& b) { b.ranges[1].slot = 8; }},
      {"slot_twice", kInternal, "ranges[1].slot", [](Batch& b) { b.ranges[1].slot = 0; }},
      {"rows_gap", kInternal, "ranges[2].first_row: expected 2",
       [](Batch& b) { b.ranges[2].first_row = 3; }},
      {"rows_missing", kInternal, "rows in ranges: expected 5, found 4",
       [](Batch& b) { b.ranges[2].rows = 2; }},
      {"rows_none", kInternal, "ranges[2].rows", [](Batch& b) { b.ranges[2].rows = 0; }},
      {"rows_huge", kInternal, "ranges[2].rows", [](Batch& b) { b.ranges[2].rows = 2147483647; }},
      {"decode_of_two", kInternal, "ranges[1].rows: expected 1 to 1, found 2",
       [](Batch& b) {
         b.ranges[1].rows = 2;
         b.ranges[2].first_row = 3;
         b.ranges[2].rows = 2;
       }},
      {"order", kInternal, "a decode range does not belong",
       [](Batch& b) { b.ranges[0].section = Section::prefill; }},
      {"keep_high", kInternal, "ranges[0].keep: expected 0 to 1, found 2",
       [](Batch& b) { b.ranges[0].keep = 2; }},
      {"keep_new", kInternal, "ranges[2].keep", [](Batch& b) { b.ranges[2].keep = 1; }},
      {"position_jump", kArgument, "next position is 2",
       [](Batch& b) { b.ranges[0].position = 3; }},
      {"position_negative", kInternal, "ranges[0].position",
       [](Batch& b) { b.ranges[0].position = -1; }},
      {"position_rope", kInternal, "ranges[0].position: expected 0 to 1023",
       [](Batch& b) { b.ranges[0].position = 1024; }},
      {"page_high", kInternal, "page of slot 2: expected 0 to 63, found 64",
       [](Batch& b) { b.pages[2] = 64; }},
      {"page_negative", kInternal, "page of slot 0", [](Batch& b) { b.pages[0] = -1; }},
      {"page_shared", kInternal, "written pages", [](Batch& b) { b.pages[1] = 0; }},
      {"pages_short", kInternal, "pages of slot 2", [](Batch& b) { b.pages.pop_back(); }},
      {"pages_start", kInternal, "pages of slot 2", [](Batch& b) { b.ranges[2].first_page = -1; }},
      {"output_high", kInternal, "output_rows[2]", [](Batch& b) { b.output_rows[2] = 5; }},
      {"output_order", kInternal, "output_rows[1]: expected 1 to 4, found 0",
       [](Batch& b) { b.output_rows[1] = 0; }},
      {"sampling_short", kInternal, "sampling: expected 3 entries, found 2",
       [](Batch& b) { b.sampling.pop_back(); }},
      {"sampling_slot", kInternal, "sampling[1].slot", [](Batch& b) { b.sampling[1].slot = 0; }},
      {"temperature", kArgument, "sampling[0].temperature",
       [](Batch& b) { b.sampling[0].temperature = kNan; }},
      {"temperature_negative", kArgument, "sampling[0].temperature",
       [](Batch& b) { b.sampling[0].temperature = -1; }},
      {"top_p", kArgument, "sampling[1].top_p", [](Batch& b) { b.sampling[1].top_p = 1.5f; }},
      {"min_p", kArgument, "sampling[1].min_p", [](Batch& b) { b.sampling[1].min_p = kNan; }},
      {"penalty", kArgument, "repetition_penalty",
       [](Batch& b) { b.sampling[1].repetition_penalty = 0; }},
      {"top_k", kArgument, "sampling[2].top_k", [](Batch& b) { b.sampling[2].top_k = -1; }},
      {"taken_back_slot", kInternal, "taken_back[0].slot",
       [](Batch& b) {
         b.taken_back = {{9, 1}};
       }},
      {"taken_back_token", kInternal, "taken_back[0].token",
       [](Batch& b) {
         b.taken_back = {{0, 300}};
       }},
      {"taken_back_absent", kInternal, "is not in the sequence",
       [](Batch& b) {
         b.taken_back = {{0, 1}, {0, 250}};
       }},
  };
  return all;
}

TEST_F(CpuErrors, ABadBatchMovesNothing) {
  CpuBackend untouched({1, ""});
  untouched.prepare(test::toy_model(sizes), test::toy_state(sizes), {});
  start(backend);
  start(untouched);
  for (const BadBatch& bad : bad_batches()) {
    Batch batch = good();
    bad.spoil(batch);
    const Complaint c = complaint([&] { backend.run(test::kMixed, batch, out, {}); });
    EXPECT_EQ(c.code, bad.code) << bad.name << ": " << c.text;
    EXPECT_NE(c.text.find(bad.says), std::string::npos) << bad.name << ": " << c.text;
    EXPECT_EQ(c.text.front(), '[') << c.text;
  }
  // the good one still runs, as on a backend that saw no bad one
  backend.run(test::kMixed, good(), out, {});
  StepOutput expected;
  untouched.run(test::kMixed, good(), expected, {});
  EXPECT_EQ(out.tokens, expected.tokens);
}

TEST_F(CpuErrors, ProgramsTakeOnlyTheirSections) {
  start(backend);
  Complaint c = complaint([&] { backend.run(test::kDecode, good(), out, {}); });
  EXPECT_EQ(c.code, ErrorCode::internal);
  EXPECT_NE(c.text.find("decode(8): ranges[2]: a prefill range"), std::string::npos) << c.text;
  c = complaint([&] { backend.run(4, good(), out, {}); });
  EXPECT_NE(c.text.find("expected a program below 4, found 4"), std::string::npos) << c.text;
  Batch score = good();
  score.ranges.erase(score.ranges.begin(), score.ranges.begin() + 2);
  score.ranges[0].first_row = 0;
  score.tokens.resize(3);
  score.output_rows = {0, 1, 2};
  score.targets = {1, 2};
  c = complaint([&] { backend.run(test::kScore, score, out, {}); });
  EXPECT_NE(c.text.find("targets: expected 3 entries, found 2"), std::string::npos) << c.text;
  score.targets = {1, 2, -7};
  c = complaint([&] { backend.run(test::kScore, score, out, {}); });
  EXPECT_EQ(c.code, ErrorCode::invalid_argument);
}

TEST_F(CpuErrors, SlotsAndSnapshots) {
  for (const std::int32_t slot : {-1, 8}) {
    EXPECT_EQ(complaint([&] { backend.reset_slot(slot); }).code, ErrorCode::internal);
    EXPECT_EQ(complaint([&] { backend.save_slot(slot, 0); }).code, ErrorCode::internal);
    EXPECT_EQ(complaint([&] { backend.export_state(slot, 0, {}, 0); }).code, ErrorCode::internal);
  }
  EXPECT_EQ(complaint([&] { backend.save_slot(0, 1); }).code, ErrorCode::invalid_argument);
  const auto snapshot = backend.save_slot(0, 0);
  struct Other final : Backend::Snapshot {
    std::uint64_t bytes() const override { return 0; }
  };
  EXPECT_EQ(complaint([&] { backend.load_slot(0, Other{}); }).code, ErrorCode::invalid_argument);
  EXPECT_EQ(complaint([&] { backend.load_slot(8, *snapshot); }).code, ErrorCode::internal);
  CpuBackend other({1, ""});
  EXPECT_EQ(complaint([&] { other.load_slot(0, *snapshot); }).code, ErrorCode::internal);
  ToySizes wider;
  wider.delta.value_heads = 8;
  other.prepare(test::toy_model(wider), test::toy_state(wider), {});
  EXPECT_EQ(complaint([&] { other.load_slot(0, *snapshot); }).code, ErrorCode::invalid_argument);
  const std::vector<std::int32_t> pages = {0, 64};
  EXPECT_EQ(complaint([&] { backend.export_state(0, 0, pages, 70); }).code,
            ErrorCode::invalid_argument);
  EXPECT_EQ(complaint([&] {
              backend.export_state(0, 0, {pages.data(), 1}, 65);
            }).code,
            ErrorCode::invalid_argument);
  EXPECT_EQ(complaint([&] { backend.export_state(0, 0, pages, std::int64_t{1} << 40); }).code,
            ErrorCode::invalid_argument);
}

// Ignored, they would let a caller believe that a card runs.
TEST(CpuPrepareErrors, WhatOnlyACardHas) {
  BackendOptions second, plain, path;
  second.index = 1;
  plain.graphs = false;
  path.arch_path = "sm90";
  for (const auto& [options, expected, found] :
       {std::tuple{second, "number: expected none", "found 1"},
        {plain, "graphs: expected not to be set", "found \"off\""},
        {path, "arch-path: expected none", "found \"sm90\""}}) {
    const Complaint c = complaint([&] { CpuBackend{options}; });
    EXPECT_EQ(c.code, ErrorCode::invalid_argument);
    EXPECT_NE(c.text.find(expected), std::string::npos) << c.text;
    EXPECT_NE(c.text.find(found), std::string::npos) << c.text;
  }
}

TEST(CpuPrepareErrors, OptionsAndSizes) {
  EXPECT_EQ(complaint([] { CpuBackend({-1, ""}); }).code, ErrorCode::invalid_argument);
  const Complaint c = complaint([] { CpuBackend({1, "sse9"}); });
  EXPECT_EQ(c.code, ErrorCode::no_device);
  EXPECT_NE(c.text.find("portable"), std::string::npos) << c.text;
  const ToySizes sizes;
  for (const StateSizes bad : {StateSizes{0, 1, 1, 300}, StateSizes{1, -1, 1, 300},
                               StateSizes{1, 1, 0, 300}, StateSizes{1, 1, 1, 0}}) {
    CpuBackend backend({1, ""});
    EXPECT_EQ(complaint([&] { backend.prepare(test::toy_model(sizes), bad, {}); }).code,
              ErrorCode::invalid_argument);
    StepOutput out;
    EXPECT_EQ(complaint([&] { backend.run(0, {}, out, {}); }).code, ErrorCode::internal);
  }
  StateSizes huge = test::toy_state(sizes);
  huge.pages = std::int64_t{1} << 40;
  CpuBackend backend({1, ""});
  EXPECT_EQ(complaint([&] { backend.prepare(test::toy_model(sizes), huge, {}); }).code,
            ErrorCode::out_of_memory);
}

struct BadProgram {
  const char* says;
  std::function<void(ModelSpec&)> spoil;
};

template <class T>
T& find_op(ModelSpec& spec) {
  for (Op& op : spec.programs[0].ops) {
    if (T* args = std::get_if<T>(&op.args)) return *args;
  }
  throw std::logic_error("the toy has no such op");
}

TEST(CpuPrepareErrors, AProgramMustFit) {
  const std::vector<BadProgram> all = {
      {"embed (embed): no weight 99", [](auto& s) { find_op<Embed>(s).table = 99; }},
      {"no weight -1", [](auto& s) { find_op<Linear>(s).weight = -1; }},
      {"y columns: expected", [](auto& s) { --find_op<Linear>(s).y.cols; }},
      {"x: no buffer 5000", [](auto& s) { find_op<RmsNorm>(s).x.buffer = 5000; }},
      {"lie outside their buffer", [](auto& s) { ++find_op<RmsNorm>(s).x.offset; }},
      {"lie outside their buffer", [](auto& s) { find_op<RmsNorm>(s).x.offset = -1; }},
      {"lie outside their buffer",
       [](auto& s) { find_op<RmsNorm>(s).x.stride = std::int64_t{1} << 62; }},
      {"lie outside their buffer",
       [](auto& s) { s.programs[0].buffers[0].offset = std::int64_t{1} << 62; }},
      {"lie outside their buffer", [](auto& s) { s.programs[0].scratch_bytes = 64; }},
      {"expected F32, found U8", [](auto& s) { find_op<SwiGlu>(s).up.dtype = DType::u8; }},
      {"weight: no constant 77", [](auto& s) { find_op<RmsNorm>(s).weight = 77; }},
      {"weight: expected 64, found",
       [](auto& s) { find_op<RmsNorm>(s).weight = find_op<DeltaRule>(s).layer + 5; }},
      {"layer: expected one of the state's delta-net",
       [](auto& s) { find_op<DeltaRule>(s).layer = 1; }},
      {"shape: expected that of the state's layer",
       [](auto& s) { find_op<DeltaRule>(s).shape.key_dim = 16; }},
      {"layer: expected one of the state's attention",
       [](auto& s) { find_op<Attention>(s).layer = -1; }},
      {"rope: expected a table", [](auto& s) { find_op<QkNormRope>(s).rotary_dim = 16; }},
      {"group: expected a divisor", [](auto& s) { find_op<GatedRmsNorm>(s).group = 33; }},
      {"expected a constant [channels, kernel]",
       [](auto& s) { find_op<DeltaConv>(s).weight = -3; }},
      {"gate: expected heads inside the row",
       [](auto& s) { find_op<SigmoidGate>(s).gate_head_stride = 1000; }},
      {"expected the ops of a delta net one by one", [](auto& s) { EXPECT_TRUE(fuse_delta(s.programs[0]).empty()); }},
      {"logits columns: expected 300", [](auto& s) { find_op<Sample>(s).logits.cols = 299; }},
      {"constant norm: its shape has 64 elements, its data 63",
       [](auto& s) { s.constants[0].data.pop_back(); }},
  };
  for (const BadProgram& bad : all) {
    const ToySizes sizes;
    ModelSpec spec = test::toy_model(sizes);
    bad.spoil(spec);
    CpuBackend backend({1, ""});
    const Complaint c =
        complaint([&] { backend.prepare(std::move(spec), test::toy_state(sizes), {}); });
    EXPECT_EQ(c.code, ErrorCode::internal) << bad.says << ": " << c.text;
    EXPECT_NE(c.text.find(bad.says), std::string::npos) << bad.says << ": " << c.text;
  }
}

}  // namespace
}  // namespace nibble::cpu
