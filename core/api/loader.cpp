#include "core/api/loader.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include "core/api/registries.h"
#include "core/base/mapped_file.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/json_file.h"
#include "core/checkpoint/quant_config.h"
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
  throw Error(ErrorCode::unsupported, config.path() + ": model_type: no model here is called \"" + type +
                                          "\"; known are " + known);
}

std::unique_ptr<Backend> make_backend(const Device& on) {
  std::string known;
  for (const BackendEntry& e : registries().backends) {
    known += std::string(known.empty() ? "" : ", ") + e.name;
    if (on.backend != e.name) continue;
    const std::string refusal = e.refusal();
    if (!refusal.empty()) throw Error(ErrorCode::unsupported, "[" + on.backend + "] " + refusal);
    return e.make({on.threads, on.kernels, on.mirror, on.index, on.graphs, on.arch_path});
  }
  throw Error(ErrorCode::not_found,
              "[device] no backend is called \"" + on.backend + "\"; this build has " + known);
}

void check(const LoadOptions& how) {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::invalid_argument, "[load options] " + what);
  };
  if (how.max_sequences < 1 || how.max_sequences > 4096) {
    refuse("max_sequences: expected 1 to 4096, found " + std::to_string(how.max_sequences));
  }
  if (how.kv_tokens < 1 || how.kv_tokens > (std::int64_t{1} << 32)) {
    refuse("kv_tokens: expected 1 to 2^32, found " + std::to_string(how.kv_tokens));
  }
  const std::int64_t least = (how.max_sequences + 2 * kPageTokens - 1) / kPageTokens * kPageTokens;
  if (how.step_tokens < least || how.step_tokens % kPageTokens != 0 || how.step_tokens > (1 << 20)) {
    refuse("step_tokens: expected a multiple of 64 from " + std::to_string(least) + " (for " +
           std::to_string(how.max_sequences) + " sequences) to 1048576, found " +
           std::to_string(how.step_tokens));
  }
  if (how.max_drafts < 0 || how.max_drafts > 15) {
    refuse("max_drafts: expected 0 to 15, found " + std::to_string(how.max_drafts));
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

void describe_work(const ModelSpec& spec, ModelInfo& info) {
  for (const Op& op : spec.programs.front().ops) {
    const auto* linear = std::get_if<Linear>(&op.args);
    if (linear == nullptr) continue;
    const Weight& w = spec.weights[static_cast<std::size_t>(linear->weight)];
    ModelInfo::LinearWork& work = linear->x.rows == Rows::tokens ? info.body : info.head;
    work.parameters += w.rows * w.cols;
    work.bytes += w.bytes();
  }
}

}  // namespace

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

Draft draft_model(const JsonView& config, const JsonView* hf_quant,
                  std::shared_ptr<const TensorSource> source, const Device& on, const LoadOptions& how,
                  std::vector<ProgramClass> classes) {
  check(how);
  const ModelEntry& entry = entry_for(config);
  Draft d;
  d.backend = make_backend(on);
  d.source = std::move(source);
  const Weights weights = Weights::root(d.source, QuantConfig::read(config, hf_quant));
  d.decoder = entry.make(config, weights);
  d.info.notes = weights.finish();

  const DecoderInfo model = d.decoder->info();
  const std::int64_t kv_tokens = pages_for(how.kv_tokens) * kPageTokens;
  d.engine.capacity = std::min(model.max_positions, kv_tokens);
  d.engine.vocab = model.vocab;
  d.engine.stop_tokens = model.end_tokens;
  d.engine.step_tokens = how.step_tokens;
  d.engine.classes = classes.empty() ? classes_for(how) : std::move(classes);
  d.engine.sizes = {how.max_sequences, kv_tokens / kPageTokens, 1 + how.max_drafts, model.vocab};

  Tracer tracer({.declared_activations = how.activations == Activations::declared,
                 .operand = d.backend->device().operand,
                 .max_positions = d.engine.capacity});
  for (const ProgramClass& cls : d.engine.classes) {
    Step step(tracer, cls);
    const Tensor logits = d.decoder->forward(step);
    Program program = step.finish(logits);
    d.info.programs.push_back({cls.name(), static_cast<std::int64_t>(program.ops.size()),
                               static_cast<std::uint64_t>(program.scratch_bytes)});
    tracer.spec().programs.push_back(std::move(program));
  }
  d.spec = std::move(tracer.spec());
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
  d.info.activations = how.activations == Activations::declared ? "declared" : "a16";
  d.info.weight_bytes = d.memory.weights;
  d.info.constant_bytes = d.memory.constants;
  d.info.kv_bytes = d.memory.kv;
  d.info.delta_bytes = d.memory.delta;
  d.info.scratch_bytes = d.memory.scratch;
  d.info.count_bytes = d.memory.counts;
  describe_formats(d.spec, d.info);
  describe_work(d.spec, d.info);
  return d;
}

Draft draft_folder(const std::filesystem::path& dir, const Device& on, const LoadOptions& how,
                   std::vector<ProgramClass> classes) {
  if (!std::filesystem::is_directory(dir)) {
    throw Error(ErrorCode::not_found,
                dir.string() + ": expected a folder with config.json and safetensors, found " +
                    (std::filesystem::exists(dir) ? "a file" : "nothing"));
  }
  const std::string config_path = (dir / "config.json").string();
  const Json config = read_json_object(config_path);
  const JsonView view(config, config_path);
  const std::string quant_path = (dir / "hf_quant_config.json").string();
  Json quant;
  std::optional<JsonView> quant_view;
  if (std::filesystem::exists(quant_path)) {
    quant = read_json_object(quant_path);
    quant_view.emplace(quant, quant_path);
  }
  return draft_model(view, quant_view ? &*quant_view : nullptr, std::make_shared<Checkpoint>(dir), on, how,
                     std::move(classes));
}

void move_weights(Draft& d, const LoadOptions& how) {
  const MemoryPlan& m = d.memory;
  const std::uint64_t free = d.backend->device().free_memory;
  if (m.total() > free) {
    throw Error(ErrorCode::out_of_memory,
                "[load] " + human_bytes(m.total()) + " are needed, " + human_bytes(free) + " are free on " +
                    d.info.device + ": weights " + human_bytes(m.weights) + ", KV cache " +
                    human_bytes(m.kv) + " (lower kv_tokens), recurrent state " + human_bytes(m.delta) +
                    " (lower max_sequences), scratch " + human_bytes(m.scratch) + " (lower step_tokens)");
  }
  if (how.on_message) {
    for (const std::string& note : d.info.notes) how.on_message(note);
  }
  // The addresses that identified weights are used up; the spec's own copies keep the bytes alive.
  d.decoder.reset();
  std::uint64_t total = 0;
  for (const Weight& w : d.spec.weights) total += w.bytes();
  const auto loaded = [&](std::uint64_t done) {
    return !how.on_progress || how.on_progress({"packing", done, total});
  };
  d.backend->prepare(std::move(d.spec), d.engine.sizes, loaded);
  d.source.reset();
}

void bring_up(Draft d, const LoadOptions& how, Model::Impl& model) {
  move_weights(d, how);
  model.info = std::move(d.info);
  for (const std::int32_t t : d.engine.stop_tokens) {
    if (std::find(model.stop_tokens.begin(), model.stop_tokens.end(), t) == model.stop_tokens.end()) {
      model.stop_tokens.push_back(t);
    }
  }
  d.engine.stop_tokens = model.stop_tokens;
  model.engine = std::make_unique<EngineLoop>(std::move(d.backend), std::move(d.engine),
                                          model.tokenizer ? &model.tokenizer->impl().bpe : nullptr);
}

void read_text_side(const std::filesystem::path& dir, Model::Impl& model) {
  const auto present = [&](const char* name) { return std::filesystem::exists(dir / name); };
  if (present("tokenizer.json")) {
    model.tokenizer.emplace(std::make_shared<const Tokenizer::Impl>(
        Tokenizer::Impl{BpeTokenizer::from_file(dir / "tokenizer.json")}));
  }
  model.template_tokens = Json(Json::Object{});
  std::string source, name;
  if (present("tokenizer_config.json")) {
    const Json config = read_json_object(dir / "tokenizer_config.json");
    for (const auto& [key, value] : config.as_object()) {
      if (!key.ends_with("_token")) continue;
      const Json* content = value.is_object() ? value.find("content") : &value;
      if (content != nullptr && content->is_string()) model.template_tokens.set(key, *content);
    }
    if (const Json* t = config.find("chat_template"); t != nullptr && t->is_string()) {
      source = t->as_string();
      name = (dir / "tokenizer_config.json").string() + ": chat_template";
    }
  }
  if (present("chat_template.jinja")) {
    const MappedFile file(dir / "chat_template.jinja");
    source.assign(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    name = (dir / "chat_template.jinja").string();
  }
  if (!name.empty()) model.chat_template.emplace(std::move(source), std::move(name));
  if (present("generation_config.json")) {
    const Json config = read_json_object(dir / "generation_config.json");
    if (const Json* eos = config.find("eos_token_id"); eos != nullptr && !eos->is_null()) {
      const auto add = [&](const Json& id) {
        if (!id.is_integer() || id.as_double() < 0 || id.as_double() > 2147483647.0) {
          throw Error(ErrorCode::bad_file, (dir / "generation_config.json").string() +
                                               ": eos_token_id: expected token ids, found " + id.dump());
        }
        model.stop_tokens.push_back(static_cast<std::int32_t>(id.as_int()));
      };
      if (eos->is_array()) {
        for (const Json& id : eos->as_array()) add(id);
      } else {
        add(*eos);
      }
    }
  }
}

}  // namespace nibble
