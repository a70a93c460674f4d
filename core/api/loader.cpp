#include "core/api/loader.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "core/api/registries.h"
#include "core/base/float_env.h"
#include "core/base/quote.h"
#include "core/checkpoint/quant_config.h"
#include "core/checkpoint/reencode.h"
#include "nibble/error.h"

namespace nibble {
namespace {

constexpr std::int64_t kScoreRows = kPageTokens;

const ModelEntry& entry_for(const JsonView& config) {
  const std::string type = config.string("model_type");
  std::string known;
  for (const ModelEntry& e : registries().models) {
    if (type == e.model_type) return e;
    known += std::string(known.empty() ? "" : ", ") + e.model_type;
  }
  throw Error(ErrorCode::unsupported, config.path() + ": model_type: no model here is called " +
                                          in_quotes(type) + "; known are " + known);
}

std::unique_ptr<Backend> make_backend(const Device& on) {
  return backend_for(on).make(backend_options(on));
}

void check(const LoadOptions& how) {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::invalid_argument, "[load options] " + what);
  };
  if (how.max_sequences < 1 || how.max_sequences > limits::max_sequences) {
    refuse("max_sequences: expected 1 to " + std::to_string(limits::max_sequences) + ", found " +
           std::to_string(how.max_sequences));
  }
  if (how.kv_tokens < 1 || how.kv_tokens > limits::kv_tokens) {
    refuse("kv_tokens: expected 1 to " + std::to_string(limits::kv_tokens) + ", found " +
           std::to_string(how.kv_tokens));
  }
  const std::int64_t least = (how.max_sequences + 2 * kPageTokens - 1) / kPageTokens * kPageTokens;
  if (how.step_tokens < least || how.step_tokens % kPageTokens != 0 ||
      how.step_tokens > limits::step_tokens) {
    refuse("step_tokens: expected a multiple of 64 from " + std::to_string(least) + " (for " +
           std::to_string(how.max_sequences) + " sequences) to " + std::to_string(limits::step_tokens) + ", found " +
           std::to_string(how.step_tokens));
  }
  if (how.max_drafts < 0 || how.max_drafts > limits::max_drafts) {
    refuse("max_drafts: expected 0 to " + std::to_string(limits::max_drafts) + ", found " +
           std::to_string(how.max_drafts));
  }
}

std::vector<ProgramClass> classes_for(const LoadOptions& how) {
  using Kind = ProgramClass::Kind;
  std::vector<ProgramClass> classes;
  for (std::int64_t rows = 1;; rows = std::min<std::int64_t>(rows * 2, how.max_sequences)) {
    classes.push_back({Kind::decode, rows, rows});
    if (rows >= how.max_sequences) break;
  }
  classes.push_back({Kind::mixed, how.step_tokens, how.max_sequences});
  classes.push_back({Kind::score, kScoreRows, kScoreRows});
  return classes;
}

// What a person wants to know of a checkpoint: layers, quantisation, files.
void describe_model(const DecoderInfo& model, const QuantConfig& quant, Draft& d) {
  ModelInfo& info = d.info;
  const StateLayout& state = d.spec.state;
  if (!state.attention.empty()) {
    const AttentionShape& a = state.attention.front();
    info.attention = {static_cast<std::int64_t>(state.attention.size()), a.heads, a.kv_heads, a.head_dim,
                      model.rotary_dim, model.rope_theta, rope_scaling_text(model.rope_scaling)};
  }
  if (!state.delta.empty()) {
    const DeltaShape& s = state.delta.front();
    info.delta_net = {static_cast<std::int64_t>(state.delta.size()), s.key_heads, s.value_heads, s.key_dim,
                      s.value_dim, s.conv_kernel};
  }
  info.rms_eps = model.rms_eps;
  info.tied_head = model.tied_head;
  info.quantisation = {quant.method_name(), quant.described(), quant.ignored()};
  for (const TensorInfo& t : d.source->tensors()) {
    const std::string name = std::filesystem::path(d.source->file_of(t)).filename().string();
    if (info.files.empty() || info.files.back().name != name) info.files.push_back({name, 0, 0});
    ++info.files.back().tensors;
    info.files.back().bytes += t.bytes.size();
  }
}

void describe_formats(const ModelSpec& spec, ModelInfo& info) {
  std::map<std::string, ModelInfo::FormatRow> rows;
  for (const Weight& w : spec.weights) {
    auto& row = rows[weight_format_name(w.format)];
    row.format = weight_format_name(w.format);
    ++row.tensors;
    row.parameters += w.rows * w.cols;
    row.bytes += w.bytes();
  }
  for (auto& [name, row] : rows) info.formats.push_back(std::move(row));
}

// Modes that change nothing in this model.
void describe_mode(const ModelSpec& spec, Activations activations, ModelInfo& info) {
  const bool quantised = std::any_of(spec.weights.begin(), spec.weights.end(), [](const Weight& w) {
    return w.format == WeightFormat::nvfp4 || w.format == WeightFormat::fp8_e4m3;
  });
  if (activations == Activations::a8 && !quantised) {
    info.notes.push_back("activations a8: expected weights in NVFP4 or FP8, found none: all runs as a16 does");
  }
}

void describe_work(const ModelSpec& spec, ModelInfo& info) {
  ModelInfo::Experts& experts = info.experts;
  for (const Op& op : spec.programs.front().ops) {
    if (const auto* route = std::get_if<ExpertRoute>(&op.args)) {
      ++experts.layers;
      experts.experts = route->logits.cols;
      experts.per_token = route->experts_per_token;
    }
    if (const auto* grouped = std::get_if<GroupedLinear>(&op.args)) {  // what one token needs of it
      const Weight& w = spec.weights[static_cast<std::size_t>(grouped->weights)];
      const std::int32_t served = spec.programs.front().experts_per_token;
      info.body.parameters += served * w.rows * w.cols;
      experts.parameters += grouped->experts * w.rows * w.cols;
      experts.active_parameters += served * w.rows * w.cols;
      experts.active_bytes += static_cast<std::uint64_t>(served) * w.bytes();
      if (grouped->x.rows == Rows::tokens) experts.intermediate = w.rows;
      info.body.bytes += static_cast<std::uint64_t>(served) * w.bytes();
    }
    const auto add = [&](const Tensor& x, WeightId id) {
      const Weight& w = spec.weights[static_cast<std::size_t>(id)];
      ModelInfo::LinearWork& work = x.rows == Rows::tokens ? info.body : info.head;
      work.parameters += w.rows * w.cols;
      work.bytes += w.bytes();
    };
    if (const auto* linear = std::get_if<Linear>(&op.args)) add(linear->x, linear->weight);
    if (const auto* fused = std::get_if<LinearSwiGlu>(&op.args)) add(fused->x, fused->gate), add(fused->x, fused->up);
  }
}

// A line for each reason why an op that could be part of another stays by itself.
void describe_apart(const std::vector<Apart>& apart, ModelInfo& info) {
  for (auto one = apart.begin(); one != apart.end(); ++one) {
    const auto same = [&](const Apart& other) {
      return std::string_view(other.why) == one->why && std::string_view(other.option) == one->option;
    };
    if (std::any_of(apart.begin(), one, same)) continue;
    const auto more = std::count_if(one + 1, apart.end(), same);
    const std::string others = more > 0 ? " and " + std::to_string(more) + " more" : "";
    info.notes.push_back(std::string(one->option) + ": " + one->op + others + " not fused: " + one->why);
  }
}

// Mode a8: matrices that the FP8 unit reads.
void reencode_nvfp4(Draft& d) {
  for (const Program& program : d.spec.programs) {
    for (const Op& op : program.ops) {
      const auto* linear = std::get_if<Linear>(&op.args);
      if (linear == nullptr || !linear->fp8_unit) continue;
      Weight& w = d.spec.weights[static_cast<std::size_t>(linear->weight)];
      if (w.format != WeightFormat::nvfp4) continue;
      d.nvfp4.emplace_back(linear->weight, std::move(w));
      w = reencoded_to_fp8(d.nvfp4.back().second);
    }
  }
}

}  // namespace

const BackendEntry& backend_for(const Device& on) {
  std::string known;
  for (const BackendEntry& e : registries().backends) {
    known += std::string(known.empty() ? "" : ", ") + e.name;
    if (on.backend != e.name) continue;
    const std::string refusal = e.refusal();
    if (!refusal.empty()) throw Error(ErrorCode::no_device, "[" + on.backend + "] " + refusal);
    return e;
  }
  throw Error(ErrorCode::no_device,
              "[device] no backend is called " + in_quotes(on.backend) + "; expected one of " + known);
}

BackendOptions backend_options(const Device& on) {
  return {on.threads,   on.kernels,    on.mirror,  on.index,  on.graphs,
          on.arch_path, on.fused_pack, on.profile, on.packing, on.fused_swiglu,
          on.fused_delta, on.fused_linears, on.fused_add_norm, on.fused_gate};
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double v = static_cast<double>(bytes);
  int unit = 0;
  while (v >= 1024 && unit < 4) {
    v /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", v, kUnits[unit]);
  return text;
}

Draft draft_model(const JsonView& config, const QuantConfig& quant,
                  std::shared_ptr<const TensorSource> source, const Device& on, const LoadOptions& how,
                  std::vector<ProgramClass> classes) {
  const FloatEnv env;  // rope tables, folded constants and whatever else is computed before a backend has it
  check(how);
  const ModelEntry& entry = entry_for(config);
  Draft d;
  d.backend = make_backend(on);
  d.source = std::move(source);
  const Weights weights = Weights::root(d.source, quant);
  d.decoder = entry.make(config, weights);
  d.info.notes = weights.finish();
  for (std::string& note : d.source->notes()) d.info.notes.push_back(std::move(note));
  d.vectors = weights.vectors();

  const DecoderInfo model = d.decoder->info();
  const std::int64_t kv_tokens = pages_for(how.kv_tokens) * kPageTokens;
  d.engine.capacity = std::min(model.max_positions, kv_tokens);
  d.engine.vocab = model.vocab;
  d.engine.stop_tokens = model.end_tokens;
  d.engine.step_tokens = how.step_tokens;
  d.engine.run_ahead = how.run_ahead.value_or(d.backend->device().overlaps);
  d.engine.classes = classes.empty() ? classes_for(how) : std::move(classes);
  d.engine.sizes = {how.max_sequences, kv_tokens / kPageTokens, 1 + how.max_drafts, model.vocab};

  Tracer tracer({.activations = how.activations,
                 .operand = d.backend->device().operand,
                 .max_positions = d.engine.capacity,
                 .fusions = d.backend->device().fusions});
  for (const ProgramClass& cls : d.engine.classes) {
    Step step(tracer, cls);
    const Tensor logits = d.decoder->forward(step);
    Program program = step.finish(logits);
    d.info.programs.push_back({cls.name(), static_cast<std::int64_t>(program.ops.size()),
                               static_cast<std::uint64_t>(program.scratch_bytes)});
    tracer.spec().programs.push_back(std::move(program));
  }
  describe_apart(tracer.apart(), d.info);
  d.spec = std::move(tracer.spec());
  d.spec.state.kv = how.kv_cache_dtype == KvCacheDtype::fp8 ? KvFormat::fp8 : KvFormat::operand;
  reencode_nvfp4(d);
  d.memory = d.backend->plan(d.spec, d.engine.sizes);

  const DeviceInfo& device = d.backend->device();
  d.info.architecture = model.architecture;
  d.info.layers = model.layers;
  d.info.hidden = model.hidden;
  d.info.vocab = model.vocab;
  d.info.max_positions = model.max_positions;
  d.info.backend = device.backend;
  d.info.device = device.name;
  d.info.kernels = device.kernels;
  d.info.profile = device.profile;
  d.info.threads = device.threads;
  d.info.activations = activations_name(how.activations);
  d.info.kv_cache_dtype = kv_cache_dtype_name(how.kv_cache_dtype);
  d.info.packing = device.packing;
  d.info.weight_bytes = d.memory.weights;
  d.info.mapped_bytes = d.memory.mapped;
  d.info.constant_bytes = d.memory.constants;
  d.info.kv_bytes = d.memory.kv;
  d.info.delta_bytes = d.memory.delta;
  d.info.scratch_bytes = d.memory.scratch;
  d.info.count_bytes = d.memory.counts;
  d.info.loading_bytes = d.memory.loading;
  d.info.free_bytes = device.free_memory;
  describe_model(model, quant, d);
  describe_formats(d.spec, d.info);
  describe_mode(d.spec, how.activations, d.info);
  describe_work(d.spec, d.info);
  return d;
}

void add_text_side(Draft& d, Model::Impl& model) {
  for (const std::int32_t t : d.engine.stop_tokens) {
    if (std::find(model.stop_tokens.begin(), model.stop_tokens.end(), t) == model.stop_tokens.end()) {
      model.stop_tokens.push_back(t);
    }
  }
  d.info.stop_tokens = model.stop_tokens;
  if (model.tokenizer) {
    d.info.tokenizer = "byte-level BPE";  // the only kind that is read
    d.info.tokenizer_size = static_cast<std::int64_t>(model.tokenizer->size());
  }
  d.info.chat_template = model.chat_template.has_value();
}

Draft draft_files(const ModelFiles& files, const Device& on, const LoadOptions& how,
                  std::vector<ProgramClass> classes) {
  const FloatEnv env;
  const ModelFiles::Described model = files.describe();
  return draft_model(model.view(), model.quant, model.tensors, on, how, std::move(classes));
}

void move_weights(Draft& d, const LoadOptions& how) {
  const MemoryPlan& m = d.memory;
  const std::uint64_t free = d.backend->device().free_memory;
  if (m.peak() > free) {
    throw Error(ErrorCode::out_of_memory,
                "[load] " + human_bytes(m.peak()) + " are needed, " + human_bytes(free) + " are free on " +
                    d.info.device + ": weights " + human_bytes(m.weights) + ", KV cache " +
                    human_bytes(m.kv) + " (lower kv_tokens" +
                    (how.kv_cache_dtype == KvCacheDtype::fp8 ? "" : ", or fp8 as kv_cache_dtype") + "), recurrent state " + human_bytes(m.delta) +
                    " (lower max_sequences), scratch " + human_bytes(m.scratch) + " (lower step_tokens)" +
                    (m.loading > 0 ? ", while loading " + human_bytes(m.loading) : ""));
  }
  if (how.on_message) {
    for (const std::string& note : d.info.notes) how.on_message(note);
  }
  // The addresses that identified weights are used up; the spec's own copies keep the bytes alive.
  d.decoder.reset();
  d.nvfp4.clear();
  std::uint64_t total = 0;
  for (const Weight& w : d.spec.weights) total += w.bytes();
  const auto loaded = [&](std::uint64_t done) {
    return !how.on_progress || how.on_progress({"packing", done, total});
  };
  d.backend->prepare(std::move(d.spec), d.engine.sizes, loaded);
  d.source.reset();
}

void bring_up(Draft d, const LoadOptions& how, Model::Impl& model) {
  const FloatEnv env;
  move_weights(d, how);
  model.info = std::move(d.info);
  d.engine.stop_tokens = model.stop_tokens;
  model.engine = std::make_unique<EngineLoop>(std::move(d.backend), std::move(d.engine),
                                          model.tokenizer ? &model.tokenizer->impl().bpe : nullptr);
}

}  // namespace nibble
