#include "backends/cuda/cuda_backend.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "backends/cuda/device_info.h"
#include "backends/cuda/loaded.h"
#include "backends/cuda/ops/sequence.h"
#include "backends/cuda/stream.h"
#include "backends/cuda/trace.h"
#include "core/base/quote.h"

namespace nibble::cuda {
namespace {

struct CudaSnapshot final : Backend::Snapshot {
  std::vector<std::vector<float>> layers;  // delta_save()'s
  std::vector<std::int32_t> counts;
  std::int64_t position = 0;

  std::uint64_t bytes() const override {
    std::uint64_t n = counts.size() * sizeof(std::int32_t);
    for (const auto& l : layers) n += l.size() * sizeof(float);
    return n;
  }
};

// On this path NVFP4 meets NVFP4 in kernels of its own.
const char* refuse_sm120_swiglu(const Weight& gate, const ActivationFormat& x) {
  const bool fp4 = gate.format == WeightFormat::nvfp4 && x.kind == ActivationFormat::Kind::nvfp4_static;
  return fp4 ? "the FP4 unit's kernels have no SwiGLU behind their sums" : nullptr;
}

}  // namespace

CudaBackend::CudaBackend(const BackendOptions& options)
    : index_(options.index), graphs_(options.graphs) {
  const std::pair<const char*, const std::string&> of_the_cpu[] = {{"mirror", options.mirror},
                                                                  {"profile", options.profile},
                                                                  {"kernels", options.kernels}};
  for (const auto& [name, value] : of_the_cpu) {
    if (value.empty()) continue;
    throw Error(ErrorCode::invalid_argument, std::string("[cuda] ") + name +
                                                 ": expected none (only the CPU has them), found " +
                                                 in_quotes(value));
  }
  if (!options.packing) {
    throw Error(ErrorCode::invalid_argument,
                "[cuda] packing: expected on (a card reads weights from its own memory), found \"off\"");
  }
  const CardInfo card = use_card(index_);
  multiprocessors_ = card.multiprocessors;
  device_.backend = "cuda";
  device_.name = card.name;
  path_ = arch_path_from(options.arch_path, card.major, card.minor);
  device_.profile = arch_path_name(path_);
  device_.kernels = architecture_of(card.major, card.minor);
  if (!options.arch_path.empty()) device_.kernels += ", path " + options.arch_path;
  device_.operand = operand_of(path_);
  device_.overlaps = true;
  const auto fused = [&](const char* name, const std::optional<bool>& asked) {
    const bool f16 = device_.operand == DType::f16;
    if (f16 && asked.value_or(false)) {
      throw Error(ErrorCode::invalid_argument, std::string("[cuda] ") + name + ": expected off with rows of f16 (" +
                                                   device_.profile + "), found \"on\"");
    }
    return asked.value_or(!f16);
  };
  if (fused("fused-pack", options.fused_pack)) device_.fusions = Fusions::packs();
  device_.fusions.linear_swiglu = fused("fused-swiglu", options.fused_swiglu);
  if (path_ == ArchPath::sm120) device_.fusions.refusal = refuse_sm120_swiglu;
  device_.fusions.delta_net = fused("fused-delta", options.fused_delta);
  fused_linears_ = options.fused_linears.value_or(path_ == ArchPath::sm90);
  if (fused_linears_ && path_ != ArchPath::sm90) {
    throw Error(ErrorCode::invalid_argument, "[cuda] fused-linears: expected off on path " + device_.profile +
                                                 " (kernels of path sm90 have it), found \"on\"");
  }
  device_.fusions.add_norm = options.fused_add_norm.value_or(true);
  device_.fusions.gated_attention = fused("fused-gate", options.fused_gate);
  device_.memory = card.memory;
  device_.free_memory = card.free_memory;
  stream_ = std::make_unique<Stream>();
}

CudaBackend::~CudaBackend() {
  cudaSetDevice(index_);
  if (stream_) cudaStreamSynchronize(stream_->get());
}

void CudaBackend::select() const {
  check(cudaSetDevice(index_), "choosing a card");
}

void CudaBackend::wait(const char* what) const {
  check(cudaStreamSynchronize(stream_->get()), what);
}

Loaded& CudaBackend::loaded(const char* who) const {
  if (loaded_ == nullptr) {
    throw Error(ErrorCode::internal, std::string("[cuda] ") + who + ": nothing is prepared");
  }
  select();
  return *loaded_;
}

Loaded& CudaBackend::loaded(const char* who, std::int32_t slot) const {
  Loaded& l = loaded(who);
  if (slot < 0 || slot >= l.sizes.slots) {
    throw Error(ErrorCode::internal, std::string("[cuda] ") + who + ": expected a slot below " +
                                         std::to_string(l.sizes.slots) + ", found " +
                                         std::to_string(slot));
  }
  return l;
}

void CudaBackend::reset_slot(std::int32_t slot) {
  Loaded& l = loaded("reset_slot", slot);
  for (const DeltaLayerView& d : l.delta) delta_reset(stream_->get(), d, slot);
  counts_reset(stream_->get(), l.counts, slot);
  check(cudaGetLastError(), "resetting a slot");
  l.cursors.reset(slot);
}

std::shared_ptr<const Backend::Snapshot> CudaBackend::save_slot(std::int32_t slot,
                                                                std::int32_t keep) {
  Loaded& l = loaded("save_slot", slot);
  l.cursors.check_slot(slot, keep);
  auto snapshot = std::make_shared<CudaSnapshot>();
  snapshot->position = l.cursors.position(slot, keep);
  auto* const floats = reinterpret_cast<float*>(l.workspace.transfer);
  auto* const counts = reinterpret_cast<std::int32_t*>(l.workspace.transfer);
  cudaStream_t stream = stream_->get();
  for (const DeltaLayerView& d : l.delta) {
    auto& layer = snapshot->layers.emplace_back(static_cast<std::size_t>(delta_floats(d.shape)));
    delta_save(stream, d, slot, l.cursors.half(slot), keep, snapshot->position, floats);
    check(cudaMemcpyAsync(layer.data(), floats, layer.size() * sizeof(float),
                          cudaMemcpyDeviceToHost, stream),
          "saving a slot");
    wait("saving a slot");
  }
  snapshot->counts.resize(static_cast<std::size_t>(l.counts.vocab));
  counts_save(stream, l.counts, slot, keep, l.cursors.pending(slot), counts);
  check(cudaMemcpyAsync(snapshot->counts.data(), counts,
                        snapshot->counts.size() * sizeof(std::int32_t), cudaMemcpyDeviceToHost,
                        stream),
        "saving a slot");
  wait("saving a slot");
  return snapshot;
}

void CudaBackend::load_slot(std::int32_t slot, const Snapshot& snapshot) {
  Loaded& l = loaded("load_slot", slot);
  const auto* ours = dynamic_cast<const CudaSnapshot*>(&snapshot);
  bool fits = ours != nullptr && ours->layers.size() == l.delta.size() &&
              ours->counts.size() == static_cast<std::size_t>(l.counts.vocab);
  for (std::size_t i = 0; fits && i < l.delta.size(); ++i) {
    fits = ours->layers[i].size() == static_cast<std::size_t>(delta_floats(l.delta[i].shape));
  }
  if (!fits)
    throw Error(ErrorCode::invalid_argument, "[cuda] load_slot: expected a snapshot of this model");
  auto* const floats = reinterpret_cast<float*>(l.workspace.transfer);
  auto* const counts = reinterpret_cast<std::int32_t*>(l.workspace.transfer);
  cudaStream_t stream = stream_->get();
  for (std::size_t i = 0; i < l.delta.size(); ++i) {
    check(cudaMemcpyAsync(floats, ours->layers[i].data(), ours->layers[i].size() * sizeof(float),
                          cudaMemcpyHostToDevice, stream),
          "loading a slot");
    delta_load(stream, l.delta[i], slot, ours->position, floats);
    wait("loading a slot");
  }
  check(cudaMemcpyAsync(counts, ours->counts.data(), ours->counts.size() * sizeof(std::int32_t),
                        cudaMemcpyHostToDevice, stream),
        "loading a slot");
  counts_load(stream, l.counts, slot, counts);
  wait("loading a slot");
  l.cursors.reset(slot, ours->position);
}

void CudaBackend::start_trace() {
  Loaded& l = loaded("start_trace");
  static_cast<void>(l);
  wait("starting a trace");
  traced_.clear();
  tracer_ = std::make_unique<Tracer>();
}

Trace CudaBackend::stop_trace() {
  Loaded& l = loaded("stop_trace");
  if (!tracer_) throw Error(ErrorCode::invalid_argument, "[cuda] stop_trace: no trace was started");
  wait("ending a trace");
  Tracer::Result result = tracer_->finish();
  tracer_.reset();
  Trace trace;
  trace.start_ns = result.start_ns;
  trace.end_ns = result.end_ns;
  for (const std::size_t program : traced_) {
    trace.steps.push_back({0, 0, l.bound[program].limits.cls.has(Section::prefill)});
  }
  // A program's kernels run in one stream: the n-th of a run belongs to the op that launched the
  // n-th.
  std::vector<std::uint64_t> seen(traced_.size());
  for (Tracer::Record& r : result.records) {
    TraceEvent& e = r.event;
    if (r.run > 0 && r.run <= seen.size()) {
      e.step = static_cast<std::int32_t>(r.run - 1);
      Trace::Step& step = trace.steps[r.run - 1];
      if (step.end_ns == 0) step.start_ns = e.start_ns;  // records come by their start
      step.end_ns = std::max(step.end_ns, e.end_ns);
    }
    if (e.step >= 0 && e.kind != TraceEvent::Kind::copy) {
      const std::vector<BoundOp>& ops = l.bound[traced_[r.run - 1]].ops;
      const std::uint64_t n = seen[r.run - 1]++;
      const auto op = std::upper_bound(ops.begin(), ops.end(), n,
                                       [](std::uint64_t at, const BoundOp& o) { return at < o.kernels; });
      // before the first op the step counts its tokens
      if (op != ops.end() && (op != ops.begin() || n > 0)) {
        e.op = op->op->name;
        e.op_kind = op_kind(op->op->args);
      }
    }
    trace.events.push_back(std::move(e));
  }
  // One whose records CUPTI lost has no time of its own.
  for (std::size_t i = 0; i < trace.steps.size(); ++i) {
    Trace::Step& step = trace.steps[i];
    if (step.end_ns == 0) step.start_ns = step.end_ns = i == 0 ? trace.start_ns : trace.steps[i - 1].end_ns;
  }
  return trace;
}

HostState CudaBackend::export_state(std::int32_t slot, std::int32_t keep,
                                    std::span<const std::int32_t> pages, std::int64_t positions) {
  Loaded& l = loaded("export_state", slot);
  l.cursors.check_slot(slot, keep);
  const std::int64_t most = static_cast<std::int64_t>(pages.size()) * kPageTokens;
  if (positions < 0 || (!l.kv.empty() && positions > most)) {
    throw Error(ErrorCode::invalid_argument, "[cuda] export_state: expected 0 to " +
                                                 std::to_string(most) + " positions, found " +
                                                 std::to_string(positions));
  }
  for (const std::int32_t page : pages) {
    if (page < 0 || page >= l.sizes.pages) {
      throw Error(ErrorCode::invalid_argument, "[cuda] export_state: page " + std::to_string(page) +
                                                   ": expected 0 to " +
                                                   std::to_string(l.sizes.pages - 1));
    }
  }
  wait("exporting a slot");
  HostState state;
  auto* const floats = reinterpret_cast<float*>(l.workspace.transfer);
  for (const DeltaLayerView& d : l.delta) {
    std::vector<float> flat(static_cast<std::size_t>(delta_floats(d.shape)));
    delta_save(stream_->get(), d, slot, l.cursors.half(slot), keep, l.cursors.position(slot, keep),
               floats);
    wait("exporting a slot");
    check(cudaMemcpy(flat.data(), floats, flat.size() * sizeof(float), cudaMemcpyDeviceToHost),
          "exporting a slot");
    const std::int64_t channels = d.shape.channels(), rows = d.shape.conv_kernel - 1;
    const auto s = static_cast<std::int64_t>(flat.size()) - rows * channels;
    HostState::DeltaLayer layer;
    layer.s.assign(flat.begin(), flat.begin() + s);
    for (std::int64_t c = 0; c < channels; ++c) {
      for (std::int64_t r = 0; r < rows; ++r)
        layer.conv.push_back(flat[static_cast<std::size_t>(s + r * channels + c)]);
    }
    state.delta.push_back(std::move(layer));
  }
  for (const KvLayerView& v : l.kv) state.kv.push_back(read_pages(v, pages, positions));
  return state;
}

}  // namespace nibble::cuda
