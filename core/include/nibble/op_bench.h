// op_bench.h: how fast is one op by itself, and how fast is the vendor's library on the same shape in the
// same run?
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nibble/error.h"
#include "nibble/export.h"
#include "nibble/options.h"

namespace nibble {

// What a device does at most, measured.
struct DeviceRoofs {
  double copy_bytes_per_second = 0;    // read + written by a copy on the device
  std::string copy;                    // of how much; where it was not measured: why
  double matrix_flops_per_second = 0;  // of a large product in bf16; 0: not measured
  std::string matrix;                  // by what; where it was not measured: why
  double fp8_flops_per_second = 0;     // the same in FP8 (e4m3)
  std::string fp8;
};
struct RoofOptions {
  bool fp8 = false;
};
// Under a third of a second after the first time. What the device cannot show is 0 and says why. Throws Error(no_device)
// for a device that is no card or is not there.
NIBBLE_API DeviceRoofs measure_roofs(const Device& on, const RoofOptions& how = {});

struct LinearShape {  // y[T, N] = x[T, K] w[N, K]^T
  std::int64_t n = 0, k = 0;
};

struct LinearBenchOptions {
  std::vector<LinearShape> shapes;
  // Of the weight: "nvfp4", "fp8", "bf16" beside bf16 x, or "a8": fp8 beside x that is quantised on the way, timed with it.
  std::vector<std::string> formats;
  std::vector<std::int64_t> rows;    // T
  int repetitions = 15;              // batches of launches
  bool peer = true;
  bool tiles = false;  // a row for each tile of the kernel that serves, beside the one it chooses itself
  // A row for each format and number of rows: all shapes one after the other, as a layer's are, each with data of its own.
  bool together = false;
  // A row where more than 256 rows run on wgmma: the kernel without its loads, on what lies in shared memory.
  bool products = false;
  // Asked between batches; false ends the run with the rows that are finished.
  std::function<bool(std::string_view what, double part)> on_progress;
};

struct LaunchTimes {            // of one launch, in seconds
  std::vector<double> samples;  // the mean of each batch
  double median = 0, spread = 0;  // spread: half the distance between the quartiles
};

struct LinearBenchRow {
  LinearShape shape;
  std::vector<LinearShape> together;  // that were run one after the other; empty: `shape` alone
  std::string format;
  std::int64_t rows = 0;
  std::string kernel;
  std::string tile;  // empty: as the kernel chooses
  // Kernels in the order of the dispatch table, each with "served" or why not.
  std::vector<std::pair<std::string, std::string>> choices;
  std::uint64_t weight_bytes = 0, bytes = 0;  // as stored; with x and y
  bool cold = false, peer_cold = false;  // more than four times the L2 lies between two uses of a weight
  LaunchTimes ours, peer;                // peer: no samples without one

  double flops() const {
    double outputs = static_cast<double>(shape.n) * static_cast<double>(shape.k);
    for (const LinearShape& s : together) outputs += static_cast<double>(s.n) * static_cast<double>(s.k);
    return 2.0 * outputs * static_cast<double>(rows);
  }
};

struct LinearBench {
  std::string device, kernels, profile;
  std::uint64_t l2_bytes = 0;
  double copy_bytes_per_second = 0;  // read + written by a copy on the device
  bool has_peer = false;
  std::string peer;                  // its name and version; without one: why
  double peer_flops_per_second = 0;  // the most that it reached; 0 without one
  std::vector<LinearBenchRow> rows;
  bool complete = true;  // false: ended by on_progress

  // The least that a row could take by both measured roofs.
  double roof_seconds(const LinearBenchRow& r) const {
    const double moved = static_cast<double>(r.bytes) / copy_bytes_per_second;
    return peer_flops_per_second > 0 ? std::max(moved, r.flops() / peer_flops_per_second) : moved;
  }
};

// Throws Error: `invalid_argument` for options out of range; `unsupported` for a device that is no card or is
// not there; `out_of_memory` with what is needed and what is free.
NIBBLE_API LinearBench bench_linear(const Device& on, const LinearBenchOptions& how);

// The linear layer of a mixture of experts, with the plain kernel of the same run beside it.
struct GroupedShape {
  std::int32_t experts = 0, per_token = 0;
  std::int64_t n = 0, k = 0;  // of each expert
  bool by_place = false;      // x has a row for each token and expert ("down"), else for each token ("gate", "up")
};

struct GroupedBenchOptions {
  std::vector<GroupedShape> shapes;
  std::vector<std::string> formats;  // as of LinearBenchOptions
  std::vector<std::int64_t> rows;    // T
  int repetitions = 15;
  bool peer = true;   // measure the peer's rate of operations, for the roof
  bool tiles = false;
  std::function<bool(std::string_view what, double part)> on_progress;  // as above
};

struct GroupedBenchRow {
  GroupedShape shape;
  std::string format;
  std::int64_t rows = 0;
  std::string kernel, plain_kernel;
  std::string tile;  // as above
  std::vector<std::pair<std::string, std::string>> choices;
  double touched = 0;       // experts that have tokens: the mean of the routes that take turns
  std::uint64_t bytes = 0;  // of those experts' weights as stored, x and y
  bool cold = false;        // more than four times the L2 lies between two uses of the same routes
  LaunchTimes ours, plain;

  double flops() const {
    return 2.0 * static_cast<double>(shape.n) * static_cast<double>(shape.k) * static_cast<double>(rows) *
           static_cast<double>(shape.per_token);
  }
};

struct GroupedBench {
  std::string device, kernels, profile;
  std::uint64_t l2_bytes = 0;
  double copy_bytes_per_second = 0;
  bool has_peer = false;
  std::string peer;
  double peer_flops_per_second = 0;
  std::vector<GroupedBenchRow> rows;
  bool complete = true;

  double roof_seconds(const GroupedBenchRow& r) const {
    const double moved = static_cast<double>(r.bytes) / copy_bytes_per_second;
    return peer_flops_per_second > 0 ? std::max(moved, r.flops() / peer_flops_per_second) : moved;
  }
};

// Throws Error as bench_linear.
NIBBLE_API GroupedBench bench_grouped(const Device& on, const GroupedBenchOptions& how);

// A norm or SwiGLU by itself, with the packing of what it makes as an op behind it, and as one op.
struct PackShape {
  std::string op;  // "rms_norm", "gated_rms_norm", "swiglu"
  std::int64_t cols = 0, group = 0;  // group: of gated_rms_norm
};

struct PackBenchOptions {
  std::vector<PackShape> shapes;
  std::vector<std::string> formats;  // "nvfp4_static", "fp8_tensor_static", "fp8_token", "fp8_token_group128"
  std::vector<std::int64_t> rows;    // T
  int repetitions = 15;
  std::function<bool(std::string_view what, double part)> on_progress;  // as above
};

struct PackBenchRow {
  PackShape shape;
  std::string format;
  std::int64_t rows = 0;
  LaunchTimes alone, two, fused;
  std::string kernel;  // of the fused op: on a card "eights", or why its generic kernel serves; else the instruction set
};

struct PackBench {
  std::string device, kernels, profile;
  std::vector<PackBenchRow> rows;
  bool complete = true;
};

// Throws Error as bench_linear, on any backend that can measure it.
NIBBLE_API PackBench bench_pack(const Device& on, const PackBenchOptions& how);

// The linear layers of an MLP's gate and up and the SwiGLU behind them, as three ops and as one.
struct GateUpBenchOptions {
  std::vector<LinearShape> shapes;   // of either weight; N a multiple of 8
  std::vector<std::string> formats;  // of both weights, as LinearBenchOptions'
  std::vector<std::int64_t> rows;    // T
  int repetitions = 15;
  std::function<bool(std::string_view what, double part)> on_progress;  // as above
};

struct GateUpBenchRow {
  LinearShape shape;
  std::string format;
  std::int64_t rows = 0;
  std::string kernel;              // of the fused op
  std::uint64_t weight_bytes = 0;  // as stored, of both
  bool cold = false;               // as LinearBenchRow's
  LaunchTimes linears, three, fused;  // linears: without SwiGLU behind them
};

struct GateUpBench {
  std::string device, kernels, profile;
  std::vector<GateUpBenchRow> rows;
  bool complete = true;
};

// Throws Error as bench_linear.
NIBBLE_API GateUpBench bench_gate_up(const Device& on, const GateUpBenchOptions& how);

// The gated delta rule of one layer: prompts, or a step of decoding, of sequences that run together; and the whole net
// between its projections and its output: convolution, gates, rule and gated norm.
struct DeltaBenchShape {
  std::int32_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
};

struct DeltaBenchOptions {
  std::vector<DeltaBenchShape> shapes;
  std::vector<std::int64_t> rows;            // of a prompt; 1: a step of decoding
  std::vector<std::int32_t> sequences = {1};
  int repetitions = 15;
  // Takes inputs and outputs of the rule from a state of zeros, of prompts of up to kMostSavedDeltaRows rows together:
  // qkv [rows, q, k and v], y [rows, value_heads * value_dim] bf16, g, beta [rows, value_heads] f32, the rows of one
  // sequence after those of another. Empty: nobody.
  std::function<void(const DeltaBenchShape&, std::int32_t sequences, std::int64_t rows, std::span<const std::uint16_t> qkv,
                     std::span<const float> g, std::span<const float> beta, std::span<const std::uint16_t> y)>
      on_result;
  std::function<bool(std::string_view what, double part)> on_progress;  // as above
};
inline constexpr std::int64_t kMostSavedDeltaRows = 16384;

struct DeltaBenchRow {
  DeltaBenchShape shape;
  std::int64_t rows = 0;  // of each sequence
  std::int32_t sequences = 0;
  std::string kernel;
  LaunchTimes times;
  // The same prompts by the float32 kernel, where the profile has another and they have at most 4,096 rows together.
  LaunchTimes plain;
  bool has_plain = false;
  LaunchTimes net;  // the whole net, where rows are bf16
  bool has_net = false;
  std::string net_kernel;
  std::uint64_t bytes = 0;  // q, k, v, g, beta, y, and S of each sequence read and written once
  std::uint64_t state_bytes = 0;  // of these, S
};

struct DeltaBench {
  std::string device, kernels, profile;
  double copy_bytes_per_second = 0;
  std::vector<DeltaBenchRow> rows;
  bool complete = true;
};

// Throws Error as bench_linear.
NIBBLE_API DeltaBench bench_delta(const Device& on, const DeltaBenchOptions& how);

// The attention of one layer: prompts from an empty sequence, or a step of decoding of sequences that hold `depth`
// positions each.
struct AttentionBenchShape {
  std::int32_t heads = 0, kv_heads = 0, head_dim = 0;
};

struct AttentionBenchOptions {
  std::vector<AttentionBenchShape> shapes;
  std::vector<std::int64_t> rows;    // of a prompt
  std::vector<std::int64_t> depths;  // of steps of decoding
  std::vector<std::int32_t> sequences = {1};  // that run together, of both
  int repetitions = 15;
  bool peer = true;  // measure the peer's rate of operations, for the roof
  std::function<bool(std::string_view what, double part)> on_progress;  // as above
};

struct AttentionBenchRow {
  AttentionBenchShape shape;
  std::int64_t rows = 0;   // of each sequence: a prompt's, or 1
  std::int64_t depth = 0;  // positions that each holds before; 0: a prompt
  std::int32_t sequences = 0;
  std::string kernel;
  LaunchTimes times;
  std::uint64_t kv_bytes = 0;  // keys and values that the rows see, each once
  bool cold = false;  // more than four times the L2 lies between two uses of a key

  // Two multiply-adds for each pair of a row and a position, a prompt's pairs counted at half.
  double flops() const {
    const double pairs = depth > 0 ? static_cast<double>(depth + 1) : static_cast<double>(rows) * static_cast<double>(rows) / 2;
    return 4.0 * pairs * static_cast<double>(sequences) * shape.heads * shape.head_dim;
  }
};

struct AttentionBench {
  std::string device, kernels, profile;
  double copy_bytes_per_second = 0;
  bool has_peer = false;
  std::string peer;                  // as LinearBench's
  double peer_flops_per_second = 0;
  std::vector<AttentionBenchRow> rows;
  bool complete = true;
};

// Throws Error as bench_linear.
NIBBLE_API AttentionBench bench_attention(const Device& on, const AttentionBenchOptions& how);

}  // namespace nibble
