// What a trace says: steps cut out of it, busy time shared out among classes of ops.
#include <gtest/gtest.h>

#include <set>

#include "core/ops/ops.h"
#include "nibble/trace.h"
#include "tools/trace_summary.h"

namespace nibble::test {
namespace {

TraceEvent kernel(std::int32_t step, const char* kind, std::int64_t start, std::int64_t end) {
  TraceEvent e;
  e.kind = TraceEvent::Kind::kernel;
  e.op_kind = kind;
  e.start_ns = start;
  e.end_ns = end;
  e.step = step;
  return e;
}

TraceEvent copy(std::int32_t step, const char* name, std::int64_t start, std::int64_t end, std::uint64_t bytes) {
  TraceEvent e = kernel(step, "", start, end);
  e.kind = TraceEvent::Kind::copy;
  e.name = name;
  e.bytes = bytes;
  return e;
}

// A prompt's step and two of decoding, with work of no step before, between and behind them.
Trace sample() {
  Trace t;
  t.start_ns = 0;
  t.end_ns = 10'000;
  t.steps = {{1'000, 2'000, true}, {3'000, 4'000, false}, {4'500, 5'500, false}};
  t.events = {kernel(-1, "", 0, 500),
              copy(0, "copy to device", 1'000, 1'010, 300),
              kernel(0, "linear", 1'010, 1'510),
              kernel(0, "attention", 1'510, 2'000),
              kernel(-1, "", 2'500, 2'900),
              copy(1, "copy to device", 3'000, 3'050, 40),
              kernel(1, "", 3'050, 3'100),                  // counts its tokens
              kernel(1, "linear", 3'100, 3'600),
              kernel(1, "delta_net", 3'500, 3'800),         // began early and waited
              kernel(1, "sample", 3'900, 3'990),
              copy(1, "copy to host", 3'990, 4'000, 4),
              copy(2, "copy to device", 4'500, 4'550, 40),
              kernel(2, "linear", 4'550, 5'490),
              copy(2, "copy to host", 5'490, 5'500, 4),
              copy(-1, "copy to host", 6'000, 7'000, 1'000'000)};
  return t;
}

TEST(Trace, StepsAreCutOutOfIt) {
  const Trace all = sample();
  EXPECT_EQ(tool::prompt_steps(all), 1u);
  const Trace decode = all.of_steps(1, 3);
  ASSERT_EQ(decode.steps.size(), 2u);
  EXPECT_EQ(decode.start_ns, 3'000);
  EXPECT_EQ(decode.end_ns, 5'500);
  EXPECT_EQ(decode.events.size(), 9u);
  for (const TraceEvent& e : decode.events) EXPECT_TRUE(e.step == 0 || e.step == 1) << e.step;
  // From 3,050 to 3,800, 3,900 to 3,990 and 4,550 to 5,490 of 2,500.
  EXPECT_DOUBLE_EQ(decode.busy_share(), (750 + 90 + 940) / 2500.0);
  EXPECT_EQ(all.of_steps(1, 99).steps.size(), 2u);
  for (const Trace& none : {all.of_steps(3, 3), all.of_steps(2, 1), Trace{}.of_steps(0, 1)}) {
    EXPECT_TRUE(none.events.empty() && none.steps.empty());
    EXPECT_EQ(none.busy_share(), 0);
  }
}

TEST(Trace, BusyTimeIsSharedOutOnce) {
  const Trace decode = sample().of_steps(1, 3);
  double sum = 0;
  for (const auto& [name, seconds] : decode.class_seconds()) {
    sum += seconds;
    const double ns = name == "linear"      ? 500 + 940
                      : name == "delta net" ? 200  // the time in which it waited for the kernel before is that one's
                      : name == "sampling"  ? 90
                      : name == "other"     ? 50
                                            : 0;
    EXPECT_NEAR(seconds, ns * 1e-9, 1e-15) << name;
  }
  EXPECT_NEAR(sum, decode.busy_share() * decode.seconds(), 1e-15);
}

TEST(Trace, Summary) {
  const tool::TraceSummary s = tool::summary_of(sample().of_steps(1, 3));
  EXPECT_EQ(s.steps, 2u);
  EXPECT_DOUBLE_EQ(s.kernels_per_step, 2.5);
  EXPECT_DOUBLE_EQ(s.longest_stall_seconds, 560e-9);  // 3,990 to 4,550
  EXPECT_EQ(s.stalls, 0u);
  EXPECT_EQ(s.to_device_bytes, 80u);
  EXPECT_EQ(s.to_host_bytes, 8u);
  double shares = 0;
  for (const auto& [name, share] : s.class_shares) shares += share;
  EXPECT_NEAR(shares, 1, 1e-12);
  const Json json = tool::summary_json(s);
  EXPECT_DOUBLE_EQ(json.find("busy_share")->as_double(), 1780 / 2500.0);
  EXPECT_NEAR(json.find("class_shares")->find("delta_net")->as_double(), 200 / 1780.0, 1e-12);
  EXPECT_EQ(tool::summary_of(Trace{}).kernels_per_step, 0);
}

// A new op must say what it counts as; these count as "other" on purpose.
TEST(Trace, EveryOpHasAClass) {
  const std::set<std::string_view> others = {"embed",       "quantize",     "swiglu",        "swiglu_pack",
                                             "add",         "gather_rows",  "expert_route",  "expert_combine"};
  std::set<std::string_view> met;
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (met.insert(op_kind(OpArgs(std::in_place_index<I>))), ...);
  }(std::make_index_sequence<std::variant_size_v<OpArgs>>());
  for (const std::string_view kind : met) {
    EXPECT_EQ(op_class(kind) == "other", others.contains(kind)) << kind << " counts as " << op_class(kind);
  }
  EXPECT_EQ(op_class("linear_swiglu"), "linear");
  EXPECT_EQ(op_class("gated_rms_norm"), "delta net");
  EXPECT_EQ(op_class(""), "other");
}

}  // namespace
}  // namespace nibble::test
