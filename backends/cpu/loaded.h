// loaded.h: the arenas of one model and its programs, bound to them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "backends/cpu/bf16_unit.h"
#include "backends/cpu/memory.h"
#include "backends/cpu/mirror.h"
#include "backends/cpu/ops/sample.h"
#include "backends/cpu/packed_weight.h"
#include "backends/cpu/parallel.h"
#include "backends/cpu/state_arena.h"
#include "backends/cpu/step.h"
#include "backends/cpu/token_counts.h"
#include "backends/in_flight.h"
#include "core/schedule/batch_check.h"

namespace nibble::cpu {

struct ConstantView {
  std::string name;
  std::vector<std::int64_t> shape;
  const float* data = nullptr;
  bool taps = false;  // of a convolution: stored [kernel, channels]
};

// An op with its tensors resolved to addresses.
struct BoundOp {
  const Op* op = nullptr;
  std::function<void(const Step&)> run;
  // What an observer is shown; no data: the step's tokens or log-probabilities.
  const std::byte* data = nullptr;
  Tensor output;
  const Section* section = nullptr;  // null: all rows
};

struct BoundProgram {
  ProgramLimits limits;
  std::vector<BoundOp> ops;
};

struct Workspace {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::int64_t sample_lanes = 0;
  std::uint64_t gather = 0;  // where GroupedLinear's rows begin, behind what Linear needs
};

// A step that has run and waits to be asked for.
struct DoneStep {
  StepOutput out;
  std::uint64_t launches = 0, allocations = 0;
  std::int64_t prefill = 0, rows = 0;
  double seconds = 0;
};

struct Loaded {
  Loaded(const Kernels& with, Parallel& across, Profile of) : kernels(with), isa(with.isa), parallel(across), profile(of) {}

  Kernels kernels;
  Isa isa;  // of kernels
  Parallel& parallel;
  Profile profile;
  StateSizes sizes;
  StateLayout layout;
  std::vector<Program> programs;  // bound ops point into it
  Block weight_block, state_block, scratch_block;
  std::vector<PackedWeight> weights;
  std::vector<std::shared_ptr<const void>> files;  // keep the bytes of those that stay in place
  std::vector<ConstantView> constants;
  TokenCounts counts;
  DeltaArena delta{{}, {}, {}};
  KvArena kv{{}, {}, {}};
  BatchChecker checker;
  Workspace workspace;
  std::vector<SampleRow> sample_rows;  // reserved for the largest class
  InFlight<DoneStep> done;             // as are their outputs
  const DoneStep* last = nullptr;      // the newest, handed out or not: a batch may refer to its tokens
  std::vector<std::int32_t> tokens;    // of the running batch, resolved; reserved like the rest
  std::vector<BoundProgram> bound;
};

// Which constants are the taps of a convolution. Throws Error(internal) where one is also something
// else.
std::vector<bool> find_taps(const ModelSpec& spec);
// What the ops of these programs need besides their buffers.
Workspace plan_workspace(const ModelSpec& spec, const StateSizes& sizes, int threads, Profile profile,
                         const Kernels& kernels);
// Resolves every tensor once. Throws Error(internal) for a program that does not fit its buffers,
// weights or constants.
BoundProgram bind(Loaded& loaded, const Program& program, const Widened& wide);
// Which implementation serves an op: {"linear nvfp4", "panels of 16, avx2"}.
std::pair<std::string, std::string> implementation(const Loaded& loaded, const Op& op);

}  // namespace nibble::cpu
