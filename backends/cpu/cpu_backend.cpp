#include "backends/cpu/cpu_backend.h"

#include <chrono>
#include <limits>

#include "backends/cpu/cpu_info.h"
#include "backends/cpu/loaded.h"
#include "backends/cpu/mirror.h"
#include "core/base/quote.h"
#include "nibble/error.h"

namespace nibble::cpu {
namespace {

struct CpuSnapshot final : Backend::Snapshot {
  std::vector<std::byte> state;
  TokenCounts::Sparse counts;
  std::int64_t vocab = 0;

  std::uint64_t bytes() const override {
    return state.size() + counts.size() * sizeof(TokenCounts::Sparse::value_type);
  }
};

// An observer gets rows without gaps, as float32 (codes as their byte).
void show(const Observer& observer, const BoundOp& op, const Step& step) {
  std::vector<float> values;
  if (op.data == nullptr) {
    if (std::holds_alternative<TokenLogprob>(op.op->args)) {
      for (const double v : step.out.logprobs) values.push_back(static_cast<float>(v));
    } else {
      for (const std::int32_t t : step.out.tokens) values.push_back(static_cast<float>(t));
    }
    observer(*op.op, static_cast<std::int64_t>(values.size()), 1, values);
    return;
  }
  const auto section = op.section == nullptr ? 0 : static_cast<std::size_t>(*op.section);
  const std::int64_t first = op.section == nullptr ? 0 : step.first_row[section];
  const std::int64_t rows =
      op.section == nullptr ? step.count(op.output.rows) : step.rows_of[section];
  if (rows == 0) return;
  const Tensor& t = op.output;
  for (std::int64_t r = first; r < first + rows; ++r) {
    for (std::int64_t c = 0; c < t.cols; ++c) {
      const std::int64_t at = r * t.stride + c;
      values.push_back(t.dtype == DType::f32
                           ? reinterpret_cast<const float*>(op.data)[at]
                           : static_cast<float>(std::to_integer<int>(op.data[at])));
    }
  }
  observer(*op.op, rows, t.cols, values);
}

// What only a card has is refused: whoever asks for it expects something else to run.
const BackendOptions& for_a_cpu(const BackendOptions& options) {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::invalid_argument, "[cpu] " + what);
  };
  if (options.index != 0) {
    refuse("number: expected none (only CUDA cards are counted), found " + std::to_string(options.index));
  }
  if (!options.graphs) refuse("graphs: expected not to be set (only CUDA cards have them), found \"off\"");
  if (!options.arch_path.empty()) {
    refuse("arch-path: expected none (only CUDA cards have one), found " + in_quotes(options.arch_path));
  }
  if (options.fused_swiglu.value_or(false)) {
    refuse("fused-swiglu: expected off (only CUDA cards have the fused op), found \"on\"");
  }
  if (options.fused_delta.value_or(false)) {
    refuse("fused-delta: expected off (only CUDA cards have the fused op), found \"on\"");
  }
  if (options.fused_linears.value_or(false)) {
    refuse("fused-linears: expected off (only CUDA cards have such launches), found \"on\"");
  }
  return options;
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

CpuBackend::CpuBackend(const BackendOptions& options)
    : profile_(profile_from_names(for_a_cpu(options).profile, options.mirror)),
      kernels_(kernels_from_name(options.kernels, profile_ == Profile::bf16)),
      parallel_(options.threads) {
  const MachineMemory memory = machine_memory();
  device_.backend = "cpu";
  device_.name = processor_name();
  device_.profile = profile_name(profile_);
  device_.kernels = kernels_name(kernels_);
  if (mirrors()) {
    device_.kernels += ", mirror";
    device_.operand = operand_type(profile_);
  }
  if (options.fused_pack.value_or(true)) device_.fusions = Fusions::packs();
  device_.fusions.add_norm = options.fused_add_norm.value_or(true);
  device_.fusions.gated_attention = options.fused_gate.value_or(true);
  device_.packing = options.packing;
  device_.threads = parallel_.threads();
  device_.memory = memory.total;
  device_.free_memory = memory.available;
}

CpuBackend::~CpuBackend() = default;

Loaded& CpuBackend::loaded(const char* who) const {
  if (loaded_ == nullptr) {
    throw Error(ErrorCode::internal, std::string("[cpu] ") + who + ": nothing is prepared");
  }
  return *loaded_;
}

Loaded& CpuBackend::loaded(const char* who, std::int32_t slot) const {
  Loaded& l = loaded(who);
  if (slot < 0 || slot >= l.sizes.slots) {
    throw Error(ErrorCode::internal, std::string("[cpu] ") + who + ": expected a slot below " +
                                         std::to_string(l.sizes.slots) + ", found " +
                                         std::to_string(slot));
  }
  return l;
}

void CpuBackend::start(std::size_t index, const Batch& batch, const Observer& observer) {
  Loaded& l = loaded("start");
  if (index >= l.bound.size()) {
    throw Error(ErrorCode::internal, "[cpu] start: expected a program below " +
                                         std::to_string(l.bound.size()) + ", found " +
                                         std::to_string(index));
  }
  DoneStep& done = l.done.next("cpu");
  const auto start = std::chrono::steady_clock::now();
  const std::uint64_t arenas = arenas_made_;
  const FloatEnv env;
  const BoundProgram& program = l.bound[index];
  const std::span<const std::int32_t> before =
      l.last == nullptr ? std::span<const std::int32_t>() : l.last->out.tokens;
  l.checker(program.limits, batch, l.delta.cursors(), l.delta.layers() > 0,
            static_cast<std::int64_t>(before.size()));
  l.tokens = batch.tokens;
  for (std::int32_t& t : l.tokens) {
    if (t < 0) t = before[static_cast<std::size_t>(-1 - t)];
  }
  l.counts.step(batch, l.tokens);
  done.out.tokens.resize(program.limits.samples ? batch.output_rows.size() : 0);
  done.out.logprobs.resize(program.limits.scores ? batch.output_rows.size() : 0);
  const Step step(batch, l.tokens, done.out, l.programs[index].experts_per_token);
  const std::int64_t traced_from = tracing_ ? now_ns() : 0;
  for (const BoundOp& op : program.ops) {
    const std::int64_t begin = tracing_ ? now_ns() : 0;
    op.run(step);
    if (tracing_) {
      TraceEvent e;
      e.name = op_kind(op.op->args);
      e.op = op.op->name;
      e.op_kind = e.name;
      e.start_ns = begin;
      e.end_ns = now_ns();
      e.step = static_cast<std::int32_t>(trace_.steps.size());
      trace_.events.push_back(std::move(e));
    }
    if (observer) show(observer, op, step);
  }
  l.delta.end_step(batch.ranges);
  if (tracing_) trace_.steps.push_back({traced_from, now_ns(), program.limits.cls.has(Section::prefill)});

  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  done.launches = program.ops.size();
  done.allocations = arenas_made_ - arenas;
  done.prefill = step.rows_of[static_cast<std::size_t>(Section::prefill)];
  done.rows = step.rows();
  done.seconds = took.count();
  l.done.push();
  l.last = &done;
}

void CpuBackend::finish(StepOutput& out) {
  const DoneStep& step = loaded("finish").done.pop("cpu");
  out.tokens.assign(step.out.tokens.begin(), step.out.tokens.end());
  out.logprobs.assign(step.out.logprobs.begin(), step.out.logprobs.end());
  const double share = static_cast<double>(step.prefill) / static_cast<double>(step.rows);
  ++stats_.steps;
  stats_.allocations += step.allocations;
  stats_.last_launches = step.launches;
  stats_.launches += step.launches;
  stats_.prefill_tokens += static_cast<std::uint64_t>(step.prefill);
  stats_.decode_tokens += static_cast<std::uint64_t>(step.rows - step.prefill);
  stats_.prefill_seconds += step.seconds * share;  // a mixed step counts by its rows
  stats_.decode_seconds += step.seconds * (1 - share);
}

void CpuBackend::reset_slot(std::int32_t slot) {
  Loaded& l = loaded("reset_slot", slot);
  l.delta.reset(slot);
  l.counts.reset(slot);
}

std::shared_ptr<const Backend::Snapshot> CpuBackend::save_slot(std::int32_t slot,
                                                               std::int32_t keep) {
  Loaded& l = loaded("save_slot", slot);
  auto snapshot = std::make_shared<CpuSnapshot>();
  snapshot->state.resize(l.delta.snapshot_bytes());
  l.delta.save(slot, keep, sequence_kernels(isa_name(kernels_.isa)), snapshot->state);
  snapshot->counts = l.counts.save(slot, keep, l.delta.cursors().pending(slot));
  snapshot->vocab = l.sizes.vocab;
  return snapshot;
}

void CpuBackend::load_slot(std::int32_t slot, const Snapshot& snapshot) {
  Loaded& l = loaded("load_slot", slot);
  const auto* ours = dynamic_cast<const CpuSnapshot*>(&snapshot);
  if (ours == nullptr || ours->vocab != l.sizes.vocab) {
    throw Error(ErrorCode::invalid_argument, "[cpu] load_slot: expected a snapshot of this model");
  }
  l.delta.load(slot, ours->state);
  l.counts.load(slot, ours->counts);
}

void CpuBackend::start_trace() {
  trace_ = {};
  trace_.start_ns = now_ns();
  tracing_ = true;
}

Trace CpuBackend::stop_trace() {
  if (!tracing_) {
    throw Error(ErrorCode::invalid_argument, "[cpu] stop_trace: no trace was started");
  }
  tracing_ = false;
  trace_.end_ns = now_ns();
  return std::move(trace_);
}

HostState CpuBackend::export_state(std::int32_t slot, std::int32_t keep,
                                   std::span<const std::int32_t> pages, std::int64_t positions) {
  Loaded& l = loaded("export_state", slot);
  if (positions < 0 || positions > std::numeric_limits<std::int32_t>::max()) {
    throw Error(
        ErrorCode::invalid_argument,
        "[cpu] export_state: expected 0 to 2^31 - 1 positions, found " + std::to_string(positions));
  }
  HostState state;
  state.delta = l.delta.to_host(slot, keep, sequence_kernels(isa_name(kernels_.isa)));
  if (l.kv.layers() > 0) state.kv = l.kv.to_host(pages, positions);
  return state;
}

}  // namespace nibble::cpu
