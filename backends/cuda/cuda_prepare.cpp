// What a model needs on this card, and how it gets there.
#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>

#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/ops/linear.h"
#include "backends/cuda/ops/sequence.h"
#include "backends/cuda/stream.h"
#include "core/checkpoint/finite.h"
#include "core/program/planner.h"

namespace nibble::cuda {
namespace {

// Weights travel through this much pinned memory and as much of the device's, freed when loading
// ends.
constexpr std::uint64_t kStagingBytes = 32u << 20;

std::uint64_t u(std::int64_t n) {
  return static_cast<std::uint64_t>(n);
}

// Float32 rows of the op's f16 tensors, each at a multiple of 256 bytes. Those that a kernel reads
// as they are (Linear's x, GatherRows) are counted too: an upper bound.
std::uint64_t wide_bytes(const Program& p, const Op& op) {
  std::uint64_t total = 0;
  OpArgs args = op.args;
  const auto count = [&](const Tensor& t) {
    if (t.valid() && t.dtype == DType::f16)
      total += aligned(u(p.rows_of(t.rows)) * u(t.cols) * sizeof(float));
  };
  visit_tensors(args, count, count);
  return total;
}

struct ScratchPlan {
  StepLimits limits;
  std::uint64_t program = 0, sample = 0, tokens = 0, logprobs = 0, transfer = 0, step = 0;
  std::uint64_t wide = 0, exponents = 0, sums = 0, delta = 0, attention = 0;
  std::int64_t exponent_rows = 0, routed = 0;
  std::uint64_t answer = 0;  // pinned
  std::uint64_t total() const {
    return aligned(program) + aligned(sample) + aligned(tokens) + aligned(logprobs) +
           aligned(transfer) + aligned(step) + aligned(wide) + aligned(exponents) + aligned(sums) +
           aligned(delta) + aligned(attention);
  }

  ScratchPlan(const ModelSpec& spec, const StateSizes& sizes, ArchPath path, int multiprocessors) {
    limits.sizes = sizes;
    std::int64_t sampled = 0;
    std::uint64_t buffers = 0;
    for (const Program& p : spec.programs) {
      if (p.scratch_bytes < 0) {
        throw Error(ErrorCode::internal, "[cuda] " + p.cls.name() + ": scratch is negative");
      }
      program = std::max(program, u(p.scratch_bytes));
      limits.rows = std::max(limits.rows, p.cls.max_rows);
      limits.outputs = std::max(limits.outputs, p.cls.max_outputs);
      routed = std::max(routed, p.rows_of(Rows::routed));
      for (const Op& op : p.ops) {
        if (std::holds_alternative<Sample>(op.args)) sampled = std::max(sampled, p.cls.max_outputs);
        wide = std::max(wide, wide_bytes(p, op));
        const auto* gated = std::get_if<GatedAttention>(&op.args);
        const auto* a = gated != nullptr ? &gated->attention : std::get_if<Attention>(&op.args);
        const bool tokens = gated != nullptr ? p.cls.has(Section::decode) || p.cls.has(Section::verify)
                                             : a != nullptr && a->section != Section::prefill;
        if (tokens) {
          const std::int64_t splits = attention_split_slots(attention_on_units(path, a->shape, Section::decode), sizes.pages, sizes.slots);
          attention = std::max(attention, attention_parts_bytes(a->shape, splits, sizes.records));
        }
        const auto* net = std::get_if<DeltaNet>(&op.args);
        const auto* rule = net != nullptr ? &net->rule : std::get_if<DeltaRule>(&op.args);
        const bool prefill = net != nullptr ? p.cls.has(Section::prefill)
                                            : rule != nullptr && rule->section == Section::prefill;
        if (prefill && delta_on_units(path, rule->shape)) {
          delta = std::max(delta, delta_records_bytes(path, rule->shape, p.cls.max_rows, sizes.slots));
        }
      }
      buffers = std::max<std::uint64_t>(buffers, p.buffers.size());
    }
    if (wide > 0) {
      exponent_rows = std::max({limits.rows, limits.outputs, routed});
      exponents = buffers * u(exponent_rows) * sizeof(std::int32_t);
    }
    if (sampled > 0) sample = sample_workspace_bytes(sampled, sizes.vocab);
    tokens = u(limits.outputs) * sizeof(std::int32_t);
    logprobs = u(limits.outputs) * sizeof(LogprobParts);
    transfer = u(sizes.vocab) * sizeof(std::int32_t);
    for (const DeltaShape& d : spec.state.delta)
      transfer = std::max(transfer, u(delta_floats(d)) * sizeof(float));
    step = StepBlock::bytes(limits);
    answer = std::max(tokens, logprobs);
    sums = linear_sums_bytes(path, multiprocessors);
  }
};

std::uint64_t constant_bytes(const ModelSpec& spec) {
  std::uint64_t total = 0;
  for (const Constant& c : spec.constants) total += aligned(elements(c) * sizeof(float));
  return total;
}

// Of each weight: the up weight that shares its image (it is gate), itself (its image is that of a gate) or none.
std::vector<WeightId> partners(const ModelSpec& spec) {
  std::vector<WeightId> with(spec.weights.size(), -1);
  for (const Program& p : spec.programs) {
    for (const Op& op : p.ops) {
      const auto* a = std::get_if<LinearSwiGlu>(&op.args);
      if (a == nullptr) continue;
      auto &gate = with.at(static_cast<std::size_t>(a->gate)), &up = with.at(static_cast<std::size_t>(a->up));
      const bool fresh = gate == -1 && up == -1, same = gate == a->up && up == a->up;
      if ((!fresh && !same) || a->gate == a->up) {
        throw Error(ErrorCode::internal,
                    "[cuda] " + p.cls.name() + ": " + op.name + ": a weight of it belongs to another pair");
      }
      gate = up = a->up;
    }
  }
  return with;
}

std::uint64_t weight_bytes(const ModelSpec& spec) {
  const std::vector<WeightId> with = partners(spec);
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < with.size(); ++i) {
    const Weight& w = spec.weights[i];
    if (with[i] < 0) {
      total += aligned(image_bytes(w));
    } else if (with[i] != static_cast<WeightId>(i)) {
      total += aligned(gate_up_bytes(w, spec.weights[static_cast<std::size_t>(with[i])]));
    }
  }
  return total;
}

void place_constants(Loaded& l, ModelSpec& spec, Carver& carver) {
  for (Constant& c : spec.constants) {
    auto* const data = carver.take_array<float>(c.data.size());
    check(cudaMemcpy(data, c.data.data(), c.data.size() * sizeof(float), cudaMemcpyHostToDevice),
          c.name.c_str());
    l.constants.push_back({std::move(c.name), std::move(c.shape), data});
  }
  spec.constants.clear();
}

// One look at every byte, shared by the machine's threads.
void check_finite_on_all_threads(const Weight& w) {
  constexpr std::int64_t kRowsAtOnce = 64;
  const std::int64_t pieces = (w.rows + kRowsAtOnce - 1) / kRowsAtOnce;
  std::atomic<std::int64_t> next{0};
  std::atomic<bool> bad{false};
  const auto work = [&] {
    for (std::int64_t i = next++; i < pieces && !bad; i = next++) {
      if (!all_finite(w, i * kRowsAtOnce, std::min(w.rows, (i + 1) * kRowsAtOnce))) bad = true;
    }
  };
  const std::int64_t helpers =
      w.bytes() < (8u << 20) ? 0 : std::min<std::int64_t>(15, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (std::int64_t i = 0; i < helpers; ++i) {
    try {
      threads.emplace_back(work);
    } catch (const std::system_error&) {
      break;  // those that there are do it
    }
  }
  work();
  for (std::thread& t : threads) t.join();
  if (bad) check_finite(w);
}

// Weights that linear layers multiply code by code.
std::vector<bool> weights_on_fp8_unit(const ModelSpec& spec) {
  std::vector<bool> on(spec.weights.size(), false);
  for (const Program& p : spec.programs) {
    for (const Op& op : p.ops) {
      const auto* linear = std::get_if<Linear>(&op.args);
      if (linear != nullptr && linear->fp8_unit) on[static_cast<std::size_t>(linear->weight)] = true;
    }
  }
  return on;
}

void place_weights(Loaded& l, ModelSpec& spec, Carver& carver, cudaStream_t stream,
                   std::uint64_t& made, const std::function<bool(std::uint64_t)>& loaded) {
  const Block host(Place::pinned, kStagingBytes, "loading", made),
      device(Place::device, kStagingBytes, "loading", made);
  const Staging staging{host.data(), device.data(), kStagingBytes, stream};
  const std::vector<bool> on_fp8_unit = weights_on_fp8_unit(spec);
  std::uint64_t done = 0;
  const auto bring = [](Weight& from) {
    Weight w = std::move(from);  // dropped, with its owner, when its image is made
    const bool from_file = !w.materialize;
    if (!from_file && w.codes.empty()) w.materialize(w);
    if (from_file) check_finite_on_all_threads(w);
    return w;
  };
  const std::vector<WeightId> with = partners(spec);
  l.weights.resize(spec.weights.size());
  for (std::size_t i = 0; i < with.size(); ++i) {
    if (with[i] == static_cast<WeightId>(i)) continue;  // with its gate
    WeightImage& image = l.weights[i];
    const Weight w = bring(spec.weights[i]);
    if (with[i] < 0) {
      image = pack_weight(w, carver.take(image_bytes(w)), staging, l.path, on_fp8_unit[i]);
    } else {
      const Weight up = bring(spec.weights[static_cast<std::size_t>(with[i])]);
      image = pack_gate_up(w, up, carver.take(gate_up_bytes(w, up)), staging, l.path);
      done += up.bytes();
    }
    check(cudaStreamSynchronize(stream), w.name.c_str());
    look_at_packed(image);
    done += w.bytes();
    if (loaded && !loaded(done)) {
      throw Error(ErrorCode::cancelled, "[cuda] loading was cancelled at weight " + w.name);
    }
  }
  spec.weights.clear();
}

void place_scratch(Loaded& l, const ScratchPlan& plan, std::uint64_t& made) {
  Carver scratch(l.scratch_block.data());
  scratch.take(plan.program);
  l.workspace.sample = scratch.take(plan.sample);
  l.workspace.tokens = reinterpret_cast<std::int32_t*>(scratch.take(plan.tokens));
  l.workspace.logprobs = reinterpret_cast<LogprobParts*>(scratch.take(plan.logprobs));
  l.workspace.transfer = scratch.take(plan.transfer);
  l.workspace.transfer_bytes = plan.transfer;
  l.workspace.wide = scratch.take(plan.wide);
  l.workspace.wide_bytes = plan.wide;
  l.workspace.exponents = reinterpret_cast<std::int32_t*>(scratch.take(plan.exponents));
  l.workspace.exponent_rows = plan.exponent_rows;
  if (plan.sums > 0) l.workspace.sums = scratch.take(plan.sums);
  if (plan.delta > 0) l.workspace.delta = scratch.take(plan.delta);
  if (plan.attention > 0) l.workspace.attention = reinterpret_cast<float*>(scratch.take(plan.attention));
  l.step = StepBlock(scratch.take(plan.step), plan.step);
  const std::uint64_t each = aligned(plan.step) + aligned(plan.answer);
  l.pinned_block = Block(Place::pinned, kStepsInFlight * each, "batches", made);
  std::byte* pinned = l.pinned_block.data();
  for (CardStep& step : l.steps.places()) {
    step.batch = pinned;
    step.answer = pinned + aligned(plan.step);
    pinned += each;
    for (Event* event : {&step.begun, &step.ended}) {
      cudaEvent_t made_event = nullptr;
      check(cudaEventCreate(&made_event), "making an event");
      event->reset(made_event);
    }
  }
}

// Kernels that read codes are those of matrix units in bf16.
void check_kv_format(const StateLayout& state, ArchPath path) {
  if (state.kv == KvFormat::operand) return;
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::unsupported, "[cuda] kv_cache_dtype: expected \"auto\" " + what + ", found \"fp8\"");
  };
  if (path == ArchPath::sm70) refuse("in profile sm70, whose f16 has no room for weights times small scales");
  for (const AttentionShape& a : state.attention) {
    if (!attention_on_units(path, a, Section::decode)) refuse("for heads of " + std::to_string(a.head_dim) + " (of 64, 128 and 256 fp8 is possible)");
  }
}

}  // namespace

MemoryPlan CudaBackend::plan(const ModelSpec& spec, const StateSizes& sizes) const {
  check_sizes(sizes);
  check_kv_format(spec.state, path_);
  MemoryPlan plan;
  plan.weights = weight_bytes(spec);
  plan.constants = constant_bytes(spec);
  plan.kv = kv_bytes(spec.state, sizes, device_.operand);
  plan.delta = delta_bytes(spec.state, sizes, device_.operand);
  plan.counts = count_bytes(sizes);
  plan.scratch = ScratchPlan(spec, sizes, path_, multiprocessors_).total();
  plan.loading = kStagingBytes;
  return plan;
}

void CudaBackend::prepare(ModelSpec spec, const StateSizes& sizes,
                          const std::function<bool(std::uint64_t)>& loaded) {
  select();
  const MemoryPlan memory = plan(spec, sizes);
  const ScratchPlan scratch(spec, sizes, path_, multiprocessors_);
  cudaStream_t stream = stream_->get();
  auto l = std::make_unique<Loaded>();
  l->sizes = sizes;
  l->layout = spec.state;
  l->path = path_;
  l->operand = device_.operand;
  l->fused_linears = fused_linears_;
  l->weight_block =
      Block(Place::device, memory.weights + memory.constants, "weights", arenas_made_);
  l->state_block =
      Block(Place::device, memory.kv + memory.delta + memory.counts, "state", arenas_made_);
  l->scratch_block = Block(Place::device, memory.scratch, "scratch", arenas_made_);
  // Zeros: what a kernel reads and then ignores is defined.
  for (const Block* block : {&l->state_block, &l->scratch_block}) {
    check(cudaMemsetAsync(block->data(), 0, block->bytes(), stream), "clearing an arena");
  }
  Carver state(l->state_block.data());
  place_state(*l, state);
  place_scratch(*l, scratch, arenas_made_);
  l->cursors = SlotCursors(sizes.slots, sizes.records);
  l->checker = BatchChecker(sizes);

  Carver weights(l->weight_block.data());
  place_constants(*l, spec, weights);
  place_weights(*l, spec, weights, stream, arenas_made_, loaded);

  l->programs = std::move(spec.programs);
  std::vector<std::pair<std::string, std::string>> kernels;
  for (const Program& program : l->programs) {
    BoundProgram& bound = l->bound.emplace_back(bind(*l, program, stream, multiprocessors_));
    capture(*l, bound);
    for (const BoundOp& op : bound.ops) {
      if (std::find(kernels.begin(), kernels.end(), op.serves) == kernels.end()) kernels.push_back(op.serves);
    }
  }
  check(cudaStreamSynchronize(stream), "preparing a model");
  std::sort(kernels.begin(), kernels.end());
  stats_ = {};
  stats_.kernels = std::move(kernels);
  loaded_ = std::move(l);
}

}  // namespace nibble::cuda
