// backend.h: what a device must do for the core. A backend knows ops, not models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/checkpoint/weight.h"
#include "core/program/fuse.h"
#include "core/program/program.h"
#include "core/schedule/batch.h"
#include "core/state/state_layout.h"
#include "nibble/op_bench.h"
#include "nibble/stats.h"
#include "nibble/trace.h"

namespace nibble {

struct Constant {  // norm weights, rope tables, convolution taps: float32, row-major
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> data;
};
// How many; throws Error(internal) when shape and data do not agree.
std::uint64_t elements(const Constant& constant);

// Everything that a backend loads.
struct ModelSpec {
  std::vector<Weight> weights;
  std::vector<Constant> constants;
  StateLayout state;
  std::vector<Program> programs;
};

struct DeviceInfo {
  std::string backend;       // "cpu"
  std::string name;          // the processor's or card's own name
  std::string profile;       // "f32"
  std::string kernels;       // which instruction set serves
  DType operand = DType::f32;  // type of buffers between ops
  std::int32_t threads = 0;
  std::uint64_t memory = 0;  // bytes, all and free
  std::uint64_t free_memory = 0;
  Fusions fusions;           // fused ops that it has
  bool packing = true;       // false: weights stay where their file is mapped
  bool overlaps = false;     // start() returns while the step still runs
};

struct MemoryPlan {
  std::uint64_t weights = 0, constants = 0, kv = 0, delta = 0, scratch = 0, counts = 0;
  std::uint64_t mapped = 0;   // of files, read in place: the system's cache holds them, in no arena and not in total()
  std::uint64_t loading = 0;  // beside the arenas while weights are on their way, freed when loading ends
  std::uint64_t total() const { return weights + constants + kv + delta + scratch + counts; }
  std::uint64_t peak() const { return total() + loading; }
};

// The state of one slot at rest, in the shapes of the formulas, whatever the device's layout.
struct HostState {
  struct DeltaLayer {
    std::vector<float> s;     // [value_heads, key_dim, value_dim], all accepted records folded in
    std::vector<float> conv;  // [channels, kernel - 1], oldest first
  };
  struct KvLayer {
    std::vector<float> k, v;  // [kv_heads, positions, head_dim]
  };
  std::vector<DeltaLayer> delta;
  std::vector<KvLayer> kv;
};

// Called after each op with its first output; data is row-major [rows, cols], valid during the call.
using Observer =
    std::function<void(const Op& op, std::int64_t rows, std::int64_t cols, std::span<const float> data)>;

// One device with the arenas of one model. Not thread-safe: the engine serialises.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const DeviceInfo& device() const = 0;

  // What prepare() will allocate. Throws nothing about free memory: the loader compares.
  virtual MemoryPlan plan(const ModelSpec& spec, const StateSizes& sizes) const = 0;

  // Allocates every arena, packs each weight once (and drops its owner; keeps that of one that stays in place),
  // compiles the programs.
  // After it returns nothing is allocated, packed or converted. `loaded(bytes)` is told of progress
  // and returns false to cancel: Error(cancelled).
  virtual void prepare(ModelSpec spec, const StateSizes& sizes,
                       const std::function<bool(std::uint64_t)>& loaded) = 0;

  // Starts program `index` of the spec on a batch of its class; the batch may change when it returns. Steps run one
  // after the other, and a token of the batch may be one that the step started just before has yet to sample
  // (Batch::from_output). `observer` may be empty; it is called before start() returns. Throws Error(internal) when
  // kStepsInFlight (in_flight.h) are in flight. When it throws, this step is not in flight and the others still are.
  virtual void start(std::size_t index, const Batch& batch, const Observer& observer = {}) = 0;
  // Waits for the oldest step in flight and hands out what it made. The step is in flight no more, even when this
  // throws. It counts in stats() from here on.
  virtual void finish(StepOutput& out) = 0;
  // Both; no other step is in flight.
  void run(std::size_t index, const Batch& batch, StepOutput& out, const Observer& observer = {}) {
    start(index, batch, observer);
    finish(out);
  }

  // What follows may be called while steps are in flight. It comes behind them: slots are as the last step leaves
  // them, whether or not its tokens have been handed out.

  // A new sequence in this slot: zero state, zero counts.
  virtual void reset_slot(std::int32_t slot) = 0;
  // Recurrent state of a slot with the last step's first `keep` records accepted; KV pages are not in it.
  struct Snapshot {
    virtual ~Snapshot() = default;
    virtual std::uint64_t bytes() const = 0;
  };
  virtual std::shared_ptr<const Snapshot> save_slot(std::int32_t slot, std::int32_t keep) = 0;
  virtual void load_slot(std::int32_t slot, const Snapshot& snapshot) = 0;

  virtual HostState export_state(std::int32_t slot, std::int32_t keep,
                                 std::span<const std::int32_t> pages, std::int64_t positions) = 0;

  virtual const StepStats& stats() const = 0;

  // Records what the device does from here on. Throws Error(unsupported) where nothing can be recorded.
  virtual void start_trace() = 0;
  virtual Trace stop_trace() = 0;
};

struct BackendOptions {
  std::int32_t threads = 0;  // CPU: 0 = all the machine's
  std::string kernels;       // CPU: "avx512", "avx2", "portable"; empty = best available
  std::string mirror;        // CPU: profile to reproduce (sm70, sm90, sm120); empty = f32
  std::int32_t index = 0;    // CUDA: which card
  bool graphs = true;        // CUDA: run programs through captured graphs
  std::string arch_path;     // CUDA: "sm70", "sm90", "sm120"; empty = the card's own
  std::optional<bool> fused_pack;  // whether to have the ops that pack what they make; empty = yes, where rows are not f16
  std::string profile;             // CPU: its own arithmetic, f32 or bf16; empty = f32
  bool packing = true;             // CPU: false leaves weights where their file is mapped
  std::optional<bool> fused_swiglu;  // CUDA: whether gate, up and SwiGLU are one op; empty = yes, but not where rows are f16
  std::optional<bool> fused_delta;   // CUDA: whether a delta net, from gates to norm, is one op; empty = yes, but not where rows are f16
  std::optional<bool> fused_linears;  // CUDA: whether joined linear layers are one launch; empty = on path sm90
  std::optional<bool> fused_add_norm;  // whether the residual sum and the norm of it are one op; empty = yes
  std::optional<bool> fused_gate;      // whether attention and its gate are one op; empty = yes, but not on a card where rows are f16
};

struct BackendEntry {
  const char* name;
  std::string (*refusal)();  // empty when a device is there, else why not; never throws
  std::unique_ptr<Backend> (*make)(const BackendOptions& options);
  // Measures Linear by itself; null: not on this backend.
  LinearBench (*bench_linear)(const BackendOptions& options, const LinearBenchOptions& how) = nullptr;
  // Measures norms and SwiGLU with the packing behind them.
  PackBench (*bench_pack)(const BackendOptions& options, const PackBenchOptions& how) = nullptr;
  // Measures GroupedLinear by itself.
  GroupedBench (*bench_grouped)(const BackendOptions& options, const GroupedBenchOptions& how) = nullptr;
  // Measures the linear layers of gate and up with SwiGLU behind them.
  GateUpBench (*bench_gate_up)(const BackendOptions& options, const GateUpBenchOptions& how) = nullptr;
  // Measures DeltaRule by itself.
  DeltaBench (*bench_delta)(const BackendOptions& options, const DeltaBenchOptions& how) = nullptr;
  // Measures Attention by itself.
  AttentionBench (*bench_attention)(const BackendOptions& options, const AttentionBenchOptions& how) = nullptr;
  // Measures what the device does at most.
  DeviceRoofs (*measure_roofs)(const BackendOptions& options, const RoofOptions& how) = nullptr;
};

}  // namespace nibble
