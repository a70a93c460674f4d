#include "nibble/op_bench.h"

#include <type_traits>

#include "core/api/loader.h"
#include "core/checkpoint/activation_kind.h"
#include "core/ops/expert_limits.h"

namespace nibble {
namespace {

constexpr std::int64_t kMostSize = 1 << 24, kMostRows = 1 << 20;

void expect_range(const std::string& what, std::int64_t value, std::int64_t most) {
  if (value >= 1 && value <= most) return;
  throw Error(ErrorCode::invalid_argument, "[bench ops] " + what + ": expected 1 to " +
                                               std::to_string(most) + ", found " + std::to_string(value));
}

void check_format(const std::string& format, std::int64_t n, std::int64_t k, bool with_a8) {
  const bool a8 = with_a8 && format == "a8";
  if (format != "nvfp4" && format != "fp8" && format != "bf16" && !a8) {
    throw Error(ErrorCode::invalid_argument, std::string("[bench ops] formats: expected nvfp4, fp8") +
                                                 (with_a8 ? ", bf16 or a8" : " or bf16") + ", found \"" + format + "\"");
  }
  expect_range("N", n, kMostSize);
  expect_range("K", k, kMostSize);
  if (format == "nvfp4" && k % 16 != 0) {
    throw Error(ErrorCode::invalid_argument, "[bench ops] shapes: expected K a multiple of 16 for nvfp4, found " +
                                                 std::to_string(n) + "x" + std::to_string(k));
  }
}

// What every bench of linear layers asks for.
template <class Options>
void check_linear(const Options& how) {
  if (how.shapes.empty() || how.formats.empty() || how.rows.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "[bench ops] expected at least one shape, format and number of rows, found none");
  }
  expect_range("repetitions", how.repetitions, 10000);
  for (const std::int64_t rows : how.rows) expect_range("rows", rows, limits::step_tokens);
  for (const std::string& format : how.formats) {
    for (const auto& s : how.shapes) check_format(format, s.n, s.k, std::is_same_v<Options, LinearBenchOptions>);
  }
}

void check(const PackBenchOptions& how) {
  if (how.shapes.empty() || how.formats.empty() || how.rows.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "[bench ops] expected at least one shape, format and number of rows, found none");
  }
  expect_range("repetitions", how.repetitions, 10000);
  for (const std::int64_t rows : how.rows) expect_range("rows", rows, limits::step_tokens);
  for (const PackShape& s : how.shapes) {
    if (s.op != "rms_norm" && s.op != "gated_rms_norm" && s.op != "swiglu") {
      throw Error(ErrorCode::invalid_argument,
                  "[bench ops] shapes: expected rms_norm, gated_rms_norm or swiglu, found \"" + s.op + "\"");
    }
    expect_range("columns", s.cols, 1 << 20);
    if (s.op == "gated_rms_norm" && (s.group < 1 || s.cols % s.group != 0)) {
      throw Error(ErrorCode::invalid_argument, "[bench ops] group: expected a divisor of " +
                                                   std::to_string(s.cols) + ", found " + std::to_string(s.group));
    }
    for (const std::string& format : how.formats) {
      const auto kind = activation_format_kind(format);
      if (!kind) {
        throw Error(ErrorCode::invalid_argument, "[bench ops] formats: expected nvfp4_static, fp8_tensor_static, "
                                                 "fp8_token or fp8_token_group128, found \"" + format + "\"");
      }
      if (*kind == ActivationFormat::Kind::nvfp4_static && s.cols % 16 != 0) {
        throw Error(ErrorCode::invalid_argument,
                    "[bench ops] columns: expected a multiple of 16 for nvfp4_static, found " +
                        std::to_string(s.cols));
      }
    }
  }
}

// By a backend that measures it, which only cards do.
template <class Bench, class Options>
Bench on_a_card(const Device& on, const Options& how, Bench (*BackendEntry::*measure)(const BackendOptions&, const Options&),
                const char* what = "bench ops") {
  const BackendEntry& entry = backend_for(on);
  if (entry.*measure == nullptr) {
    throw Error(ErrorCode::no_device,
                std::string("[device] ") + what + ": expected a CUDA device (cuda, cuda:1), found " + on.text());
  }
  return (entry.*measure)(backend_options(on), how);
}

}  // namespace

LinearBench bench_linear(const Device& on, const LinearBenchOptions& how) {
  check_linear(how);
  return on_a_card(on, how, &BackendEntry::bench_linear);
}

GroupedBench bench_grouped(const Device& on, const GroupedBenchOptions& how) {
  check_linear(how);
  for (const GroupedShape& s : how.shapes) {
    expect_range("experts", s.experts, kMostExperts);
    expect_range("experts of a token", s.per_token, s.experts);
  }
  return on_a_card(on, how, &BackendEntry::bench_grouped);
}

GateUpBench bench_gate_up(const Device& on, const GateUpBenchOptions& how) {
  check_linear(how);
  for (const LinearShape& s : how.shapes) {
    if (s.n % 8 == 0) continue;
    throw Error(ErrorCode::invalid_argument,
                "[bench ops] shapes: expected N a multiple of 8, found " + std::to_string(s.n));
  }
  return on_a_card(on, how, &BackendEntry::bench_gate_up);
}

DeltaBench bench_delta(const Device& on, const DeltaBenchOptions& how) {
  if (how.shapes.empty() || how.rows.empty() || how.sequences.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "[bench ops] expected at least one shape, number of rows and of sequences, found none");
  }
  expect_range("repetitions", how.repetitions, 10000);
  for (const DeltaBenchShape& s : how.shapes) {
    expect_range("key heads", s.key_heads, 1024);
    expect_range("value heads", s.value_heads, 1024);
    expect_range("key_dim", s.key_dim, 1024);
    expect_range("value_dim", s.value_dim, 1024);
    if (s.value_heads % s.key_heads != 0) {
      throw Error(ErrorCode::invalid_argument, "[bench ops] value heads: expected a multiple of " +
                                                   std::to_string(s.key_heads) + ", found " + std::to_string(s.value_heads));
    }
  }
  for (const std::int32_t sequences : how.sequences) {
    expect_range("sequences", sequences, 1024);
    for (const std::int64_t rows : how.rows) {
      if (rows >= 1 && rows * sequences <= kMostRows) continue;
      throw Error(ErrorCode::invalid_argument, "[bench ops] rows of all sequences: expected 1 to " +
                                                   std::to_string(kMostRows) + ", found " + std::to_string(sequences) +
                                                   " sequences of " + std::to_string(rows));
    }
  }
  return on_a_card(on, how, &BackendEntry::bench_delta);
}

AttentionBench bench_attention(const Device& on, const AttentionBenchOptions& how) {
  if (how.shapes.empty() || (how.rows.empty() && how.depths.empty()) || how.sequences.empty()) {
    throw Error(ErrorCode::invalid_argument, "[bench ops] expected at least one shape, number of sequences, and number of "
                                             "rows or depth, found none");
  }
  expect_range("repetitions", how.repetitions, 10000);
  for (const AttentionBenchShape& s : how.shapes) {
    expect_range("heads", s.heads, 1024);
    expect_range("kv heads", s.kv_heads, 1024);
    expect_range("head_dim", s.head_dim, 1024);
    if (s.heads % s.kv_heads != 0) {
      throw Error(ErrorCode::invalid_argument, "[bench ops] heads: expected a multiple of " + std::to_string(s.kv_heads) +
                                                   " kv heads, found " + std::to_string(s.heads));
    }
  }
  for (const std::int32_t sequences : how.sequences) {
    expect_range("sequences", sequences, 1024);
    for (const std::int64_t rows : how.rows) {
      if (rows >= 1 && rows * sequences <= kMostRows) continue;
      throw Error(ErrorCode::invalid_argument, "[bench ops] rows of all sequences: expected 1 to " + std::to_string(kMostRows) +
                                                   ", found " + std::to_string(sequences) + " sequences of " +
                                                   std::to_string(rows));
    }
    for (const std::int64_t depth : how.depths) expect_range("depth", depth, kMostSize);
  }
  return on_a_card(on, how, &BackendEntry::bench_attention);
}

DeviceRoofs measure_roofs(const Device& on, const RoofOptions& how) {
  return on_a_card(on, how, &BackendEntry::measure_roofs, "roofs");
}

PackBench bench_pack(const Device& on, const PackBenchOptions& how) {
  check(how);
  const BackendEntry& entry = backend_for(on);
  if (entry.bench_pack == nullptr) {
    throw Error(ErrorCode::no_device, "[device] bench ops: packing is not measured on " + on.text());
  }
  return entry.bench_pack(backend_options(on), how);
}

}  // namespace nibble
