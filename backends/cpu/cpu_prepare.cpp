// What a model needs on this processor, and how it gets there.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/loaded.h"
#include "backends/cpu/mirror.h"
#include "backends/cpu/ops/experts.h"
#include "backends/cpu/ops/any_linear.h"
#include "backends/cpu/ops/pack.h"
#include "backends/cpu/ops/sequence_ops.h"
#include "core/checkpoint/finite.h"
#include "core/numerics/attention_order.h"
#include "nibble/error.h"

namespace nibble::cpu {
namespace {

constexpr std::int64_t kSampleLanes = 8;  // 5 MB each at a vocabulary of 248,320

std::uint64_t round64(std::uint64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

void place_constants(Loaded& l, ModelSpec& spec, Carver& carver) {
  const std::vector<bool> taps = find_taps(spec);
  for (std::size_t i = 0; i < spec.constants.size(); ++i) {
    Constant& c = spec.constants[i];
    auto* const data = reinterpret_cast<float*>(carver.take(elements(c) * sizeof(float)));
    if (!taps[i]) {
      std::copy(c.data.begin(), c.data.end(), data);
    } else {
      pack_conv_taps(c.data.data(), c.shape[0], static_cast<std::int32_t>(c.shape[1]), data);
    }
    l.constants.push_back({std::move(c.name), std::move(c.shape), data, taps[i]});
  }
  spec.constants.clear();
}

// The threads look for anything that is not finite, one of them then says what it is.
void expect_finite(Loaded& l, const Weight& w) {
  expect_sizes(w);
  std::atomic<bool> bad{false};
  l.parallel(w.rows, std::max<std::int64_t>(1, 65536 / w.cols),
             [&](std::int64_t begin, std::int64_t end) {
               if (!all_finite(w, begin, end)) bad.store(true, std::memory_order_relaxed);
             });
  if (bad) check_finite(w);
}

void place_weights(Loaded& l, ModelSpec& spec, Carver& carver, const std::function<Layout(const Weight&)>& layout_of,
                   const std::function<bool(std::uint64_t)>& loaded) {
  std::uint64_t done = 0;
  // The disk reads what is mapped while the check below waits for the first of it; more than fits would come in vain.
  const MachineMemory machine = machine_memory();
  std::uint64_t ahead = 0;
  for (const Weight& w : spec.weights) {
    if (layout_of(w) != Layout::rows || (ahead += w.bytes()) > machine.available) continue;
    read_ahead(w.codes);
    read_ahead(w.block_scales);
  }
  const NibbleOrder order = nibble_order(l.isa);
  const WeightOperand operand = weight_operand(l.profile);
  for (Weight& from : spec.weights) {
    Weight w = std::move(from);  // dropped, with its owner, at the end of the round
    const bool from_file = !w.materialize;
    if (!from_file && w.codes.empty()) w.materialize(w);
    const Layout layout = layout_of(w);
    std::byte* const arena = carver.take(packed_bytes(w, operand, layout));
    if (from_file) expect_finite(l, w);
    l.weights.push_back(pack(w, arena, l.parallel, order, operand, layout));
    if (layout == Layout::rows && (l.files.empty() || l.files.back() != w.owner)) l.files.push_back(w.owner);
    done += w.bytes();
    if (loaded && !loaded(done)) {
      throw Error(ErrorCode::cancelled, "[cpu] loading was cancelled at weight " + w.name);
    }
  }
  spec.weights.clear();
}

// Of the row that a Packed makes; 0 for other ops.
std::int64_t packed_columns(const OpArgs& args) {
  return std::visit(
      [](const auto& a) -> std::int64_t {
        if constexpr (requires { a.op.norm; }) {
          return a.op.norm.y.cols;
        } else if constexpr (requires { a.pack; }) {
          return a.op.y.cols;
        } else {
          return 0;
        }
      },
      args);
}

}  // namespace

std::vector<bool> find_taps(const ModelSpec& spec) {
  std::vector<bool> taps(spec.constants.size());
  for (const Program& program : spec.programs) {
    for (const Op& op : program.ops) {
      const auto* conv = std::get_if<DeltaConv>(&op.args);
      if (conv == nullptr) continue;
      const auto id = static_cast<std::size_t>(conv->weight);
      if (conv->weight < 0 || id >= taps.size() || spec.constants[id].shape.size() != 2) {
        throw Error(ErrorCode::internal, "[cpu] " + op.name +
                                             ": expected a constant [channels, kernel], found id " +
                                             std::to_string(conv->weight));
      }
      taps[id] = true;
    }
  }
  return taps;
}

Workspace plan_workspace(const ModelSpec& spec, const StateSizes& sizes, int threads, Profile profile,
                         const Kernels& kernels) {
  Workspace w;
  const auto need = [&w](std::uint64_t bytes) { w.bytes = std::max(w.bytes, round64(bytes)); };
  const auto weight = [&](WeightId id) -> const Weight& { return spec.weights[static_cast<std::size_t>(id)]; };
  const auto known = [&](WeightId id) {  // of others bind() complains
    return id >= 0 && static_cast<std::size_t>(id) < spec.weights.size();
  };
  const auto linear_bytes = [&](const Program& program, const Tensor& x, const ActivationFormat& format, WeightId id) {
    if (!known(id)) return std::uint64_t{0};
    return static_cast<std::uint64_t>(
        any_linear_workspace_bytes(profile, kernels, threads, program.rows_of(x.rows), weight(id).cols, format));
  };
  std::int64_t gather = 0;
  for (const Program& program : spec.programs) {
    for (const Op& op : program.ops) {
      if (const auto* linear = std::get_if<Linear>(&op.args)) {
        need(linear_bytes(program, linear->x, linear->x_format, linear->weight));
      } else if (const auto* grouped = std::get_if<GroupedLinear>(&op.args)) {
        w.gather = std::max(w.gather, round64(linear_bytes(program, grouped->x, grouped->x_format, grouped->weights)));
        if (known(grouped->weights)) gather = std::max(gather, grouped_gather_bytes(weight(grouped->weights).cols));
      } else if (const std::int64_t cols = packed_columns(op.args); cols > 0) {
        need(static_cast<std::uint64_t>(pack_workspace_bytes(cols, threads)));
      } else if (std::holds_alternative<Sample>(op.args)) {
        w.sample_lanes =
            std::max(w.sample_lanes,
                     std::clamp<std::int64_t>(program.cls.max_outputs, 1,
                                              std::min<std::int64_t>(threads, kSampleLanes)));
      }
    }
  }
  if (gather > 0) need(w.gather + static_cast<std::uint64_t>(gather));
  for (const DeltaShape& shape : spec.state.delta) need(delta_rule_workspace(shape, threads));
  for (const AttentionShape& shape : spec.state.attention) {
    need(attention_workspace(shape, sizes.records, threads, spec.state.kv));
  }
  if (w.sample_lanes > 0) need(sample_workspace_bytes(sizes.vocab, w.sample_lanes));
  return w;
}

namespace {

// What the card that a mirror stands for takes.
void check_kv_format(const StateLayout& state, Profile profile) {
  if (state.kv == KvFormat::operand || profile == Profile::f32 || profile == Profile::bf16) return;
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::unsupported, "[cpu] kv_cache_dtype: expected \"auto\" " + what + ", found \"fp8\"");
  };
  if (profile == Profile::sm70) refuse("in profile sm70, whose f16 has no room for weights times small scales");
  for (const AttentionShape& a : state.attention) {
    if (!num::attention_on_units(a)) refuse("for heads of " + std::to_string(a.head_dim) + " (of 64, 128 and 256 fp8 is possible)");
  }
}

}  // namespace

Layout CpuBackend::layout_of(const Weight& weight) const {
  return !device_.packing && usable_in_place(weight, weight_operand(profile_)) ? Layout::rows : Layout::panels;
}

MemoryPlan CpuBackend::plan(const ModelSpec& spec, const StateSizes& sizes) const {
  check_sizes(sizes);
  check_kv_format(spec.state, profile_);
  MemoryPlan plan;
  for (const Weight& w : spec.weights) {
    const Layout layout = layout_of(w);
    plan.weights += round64(packed_bytes(w, weight_operand(profile_), layout));
    if (layout == Layout::rows) plan.mapped += w.codes.size() + w.block_scales.size();
    // A file's pages can be dropped, invented weights cannot until they are packed.
    if (w.materialize) plan.loading = std::max(plan.loading, w.bytes() + w.making_bytes);
  }
  if (!device_.packing && plan.mapped == 0 && !spec.weights.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "[cpu] packing: expected on, as no weight of this model lies in a file as profile " + device_.profile +
                    " reads it (weights are invented, re-encoded or of another type), found \"off\"");
  }
  for (const Constant& c : spec.constants) plan.constants += round64(elements(c) * sizeof(float));
  plan.kv = round64(KvArena::bytes(spec.state, sizes));
  plan.delta = round64(DeltaArena::bytes(spec.state, sizes));
  plan.counts = TokenCounts::bytes(sizes) + BatchChecker::bytes(sizes);
  for (const Program& p : spec.programs) {
    if (p.scratch_bytes < 0) {
      throw Error(ErrorCode::internal, "[cpu] " + p.cls.name() + ": scratch is negative");
    }
    std::int64_t bytes = p.scratch_bytes;
    if (mirrors()) {
      Program wide = p;
      widen(wide, profile_);
      bytes = wide.scratch_bytes;
    }
    plan.scratch = std::max(plan.scratch, round64(static_cast<std::uint64_t>(bytes)));
  }
  plan.scratch += plan_workspace(spec, sizes, parallel_.threads(), profile_, kernels_).bytes;
  return plan;
}

void CpuBackend::prepare(ModelSpec spec, const StateSizes& sizes,
                         const std::function<bool(std::uint64_t)>& loaded) {
  const FloatEnv env;
  const MemoryPlan memory = plan(spec, sizes);
  auto l = std::make_unique<Loaded>(kernels_, parallel_, profile_);
  l->sizes = sizes;
  l->layout = spec.state;
  l->weight_block = Block(memory.weights + memory.constants, "weights", arenas_made_);
  l->state_block = Block(memory.kv + memory.delta + TokenCounts::bytes(sizes), "state", arenas_made_);
  l->scratch_block = Block(memory.scratch, "scratch", arenas_made_);
  l->state_block.touch();
  l->scratch_block.touch();

  Carver state(l->state_block.data());
  std::byte* const kv = state.take(memory.kv);
  l->kv = KvArena({kv, memory.kv}, l->layout, sizes);
  std::byte* const delta = state.take(memory.delta);
  l->delta = DeltaArena({delta, memory.delta}, l->layout, sizes);
  l->counts = TokenCounts(sizes, state.take(TokenCounts::bytes(sizes)));
  for (std::int32_t slot = 0; slot < sizes.slots; ++slot) l->delta.reset(slot);
  l->checker = BatchChecker(sizes);
  l->workspace = plan_workspace(spec, sizes, parallel_.threads(), profile_, kernels_);
  l->workspace.data = l->scratch_block.data() + (memory.scratch - l->workspace.bytes);

  Carver carver(l->weight_block.data());
  place_constants(*l, spec, carver);
  place_weights(*l, spec, carver, [this](const Weight& w) { return layout_of(w); }, loaded);

  l->programs = std::move(spec.programs);
  std::vector<std::pair<std::string, std::string>> kernels;
  std::int64_t outputs = 0, rows = 0;
  for (Program& program : l->programs) {
    const Widened wide = widen(program, profile_);
    l->bound.push_back(cpu::bind(*l, program, wide));  // not std::bind
    outputs = std::max(outputs, program.cls.max_outputs);
    rows = std::max(rows, program.cls.max_rows);
    for (const Op& op : program.ops) {
      auto entry = implementation(*l, op);
      if (std::find(kernels.begin(), kernels.end(), entry) == kernels.end()) {
        kernels.push_back(std::move(entry));
      }
    }
  }
  l->sample_rows.reserve(static_cast<std::size_t>(outputs));
  l->tokens.reserve(static_cast<std::size_t>(rows));
  for (DoneStep& step : l->done.places()) {
    step.out.tokens.reserve(static_cast<std::size_t>(outputs));
    step.out.logprobs.reserve(static_cast<std::size_t>(outputs));
  }
  std::sort(kernels.begin(), kernels.end());
  stats_ = {};
  stats_.kernels = std::move(kernels);
  loaded_ = std::move(l);
}

}  // namespace nibble::cpu
