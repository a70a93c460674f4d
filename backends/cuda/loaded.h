// loaded.h: the arenas of one model on one card and its programs, bound to them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "backends/cuda/arch_path.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/ops/sample.h"
#include "backends/cuda/state_view.h"
#include "backends/cuda/step_block.h"
#include "backends/cuda/weight_image.h"
#include "backends/in_flight.h"
#include "core/schedule/batch_check.h"
#include "core/state/slot_cursors.h"

namespace nibble::cuda {

struct ConstantView {
  std::string name;
  std::vector<std::int64_t> shape;
  const float* data = nullptr;
};

// An op with its tensors resolved to addresses.
struct BoundOp {
  const Op* op = nullptr;
  std::function<void(const Launch&)> enqueue;
  View output;  // what an observer is shown; no data: tokens or log-probabilities
  const Section* section = nullptr;  // null: all rows
  std::uint64_t kernels = 0;         // launches of the step up to and with this op
  std::pair<std::string, std::string> serves;  // {"linear nvfp4", "wgmma.m64k16"}, for StepStats
};

struct GraphDeleter {
  void operator()(cudaGraphExec_t g) const { cudaGraphExecDestroy(g); }
};
using GraphExec = std::unique_ptr<CUgraphExec_st, GraphDeleter>;

struct BoundProgram {
  ProgramLimits limits;
  Launch launch;
  std::vector<BoundOp> ops;
  GraphExec graph;
  std::uint64_t kernels = 0;  // launches of one run
};

// Offsets in the scratch arena behind the programs' own buffers.
struct Workspace {
  std::byte* sample = nullptr;
  std::int32_t* tokens = nullptr;    // [outputs]
  LogprobParts* logprobs = nullptr;  // [outputs]
  std::byte* transfer = nullptr;     // one layer's state or one slot's counts, on its way
  std::uint64_t transfer_bytes = 0;
  // Profiles with f16 buffers only: float32 rows of one op at a time, and exponents, [buffers,
  // rows].
  std::byte* wide = nullptr;
  std::uint64_t wide_bytes = 0;
  std::int32_t* exponents = nullptr;
  std::int64_t exponent_rows = 0;
  std::byte* sums = nullptr;  // Linear's partial sums
  std::byte* delta = nullptr;  // DeltaRule's records; null: no op has any
  float* attention = nullptr;  // parts of splits; null: no sequence can have two
};

struct EventDeleter {
  void operator()(cudaEvent_t e) const { cudaEventDestroy(e); }
};
using Event = std::unique_ptr<CUevent_st, EventDeleter>;

// A step in flight, with the pinned memory and the events of its place.
struct CardStep {
  std::byte* batch = nullptr;   // StepBlock's host side
  std::byte* answer = nullptr;  // tokens or LogprobParts
  Event begun, ended;
  const BoundProgram* program = nullptr;
  std::size_t outputs = 0;
  std::uint64_t sent = 0, read = 0, allocations = 0;
  std::int64_t prefill = 0, rows = 0;
};

struct Loaded {
  StateSizes sizes;
  StateLayout layout;
  ArchPath path = ArchPath::sm90;
  DType operand = DType::bf16;
  bool fused_linears = false;    // joined linear layers are one launch where a kernel can
  std::vector<Program> programs;  // bound ops point into it
  Block weight_block, state_block, scratch_block, pinned_block;
  std::vector<WeightImage> weights;
  std::vector<ConstantView> constants;
  std::vector<DeltaLayerView> delta;
  std::vector<KvLayerView> kv;
  TokenCountsView counts;
  SlotCursors cursors;
  BatchChecker checker;
  StepBlock step;
  InFlight<CardStep> steps;
  std::int64_t sampled = 0;  // tokens in the workspace that a batch may refer to
  Workspace workspace;
  std::vector<BoundProgram> bound;
};

// Resolves every tensor once. Throws Error(internal) for a program that does not fit its buffers,
// weights, constants or state.
BoundProgram bind(Loaded& loaded, const Program& program, cudaStream_t stream, int multiprocessors);

// Sizes in bytes of what lies in the state arena; `operand`: of the profile.
std::uint64_t kv_bytes(const StateLayout& layout, const StateSizes& sizes, DType operand);
std::uint64_t delta_bytes(const StateLayout& layout, const StateSizes& sizes, DType operand);
std::uint64_t count_bytes(const StateSizes& sizes);
// Places the state's arrays, in that order.
void place_state(Loaded& loaded, Carver& carver);

}  // namespace nibble::cuda
