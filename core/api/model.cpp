#include "nibble/model.h"

#include <algorithm>
#include <cctype>

#include "core/api/loader.h"
#include "core/api/registries.h"
#include "core/base/files.h"
#include "core/base/quote.h"
#include "core/checkpoint/reencode.h"
#include "core/checkpoint/synthetic.h"
#include "core/text/utf8_repair.h"
#include "nibble/error.h"

namespace nibble {
namespace {

void check_vocabulary(const Model::Impl& model, const Draft& draft) {
  if (!model.tokenizer) return;
  if (static_cast<std::int64_t>(model.tokenizer->size()) > draft.engine.vocab) {
    throw Error(ErrorCode::bad_file, "[load] the tokenizer has ids up to " +
                                         std::to_string(model.tokenizer->size() - 1) +
                                         ", the model's vocabulary has " +
                                         std::to_string(draft.engine.vocab) + " entries");
  }
}

// Named as matrices are: by their scope.
TensorRow vector_row(const TensorInfo& t) {
  constexpr std::string_view kLeaf = ".weight";
  std::string name = t.name, format = dtype_name(t.dtype);
  if (name.ends_with(kLeaf)) name.resize(name.size() - kLeaf.size());
  for (char& c : format) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return {std::move(name), std::move(format), "", t.shape, t.bytes.size(), false};
}

Draft draft_synthetic(const SyntheticOptions& what, const Device& on, const LoadOptions& how) {
  const auto presets = registries().presets;
  const auto preset = std::find_if(presets.begin(), presets.end(),
                                   [&](const ModelPreset& p) { return what.shape == p.name; });
  if (preset == presets.end()) {
    std::string known;
    for (const ModelPreset& p : presets) known += std::string(known.empty() ? "" : ", ") + p.name;
    throw Error(ErrorCode::not_found,
                "[synthetic] no shape is called " + in_quotes(what.shape) + "; known are " + known);
  }
  Json config = Json::parse(preset->config, preset->name);
  if (what.layers != 0) {
    if (what.layers < 0 || what.layers > 1024) {
      throw Error(ErrorCode::invalid_argument,
                  "[synthetic] layers: expected 1 to 1024, found " + std::to_string(what.layers));
    }
    config.set("num_hidden_layers", what.layers);
  }
  auto source = std::make_shared<SyntheticSource>(what.seed, synthetic_policy(what.mix));
  return draft_model(JsonView(config, what.shape), QuantConfig::read(JsonView(config, what.shape)), source, on, how);
}

}  // namespace

Model Model::load(const std::filesystem::path& dir, const Device& on, const LoadOptions& how) {
  const ModelFiles files(dir);
  Draft draft = draft_files(files, on, how);
  auto model = std::make_shared<Impl>();
  files.read_text(*model);
  check_vocabulary(*model, draft);
  add_text_side(draft, *model);
  bring_up(std::move(draft), how, *model);
  return Model(std::move(model));
}

ModelInfo Model::inspect(const std::filesystem::path& dir, std::vector<TensorRow>* tensors,
                         const Device& on, const LoadOptions& how) {
  const ModelFiles files(dir);
  Draft draft = draft_files(files, on, how);
  Impl model;
  files.read_text(model);
  check_vocabulary(model, draft);
  add_text_side(draft, model);
  for (const auto& [id, w] : draft.nvfp4) {
    const ReencodeLoss loss = reencode_loss(w);
    draft.info.reencoded.push_back({w.name, w.rows, w.cols, loss.exponent, loss.inexact, loss.error2, loss.size2});
  }
  if (tensors != nullptr) {
    std::vector<const Weight*> stored;
    for (const Weight& w : draft.spec.weights) stored.push_back(&w);
    for (const auto& [id, w] : draft.nvfp4) stored[static_cast<std::size_t>(id)] = &w;
    for (const Weight* of : stored) {
      const Weight& w = *of;
      tensors->push_back({w.name, weight_format_name(w.format), activation_format_name(w.activation.kind),
                          {w.rows, w.cols}, w.bytes(), true});
    }
    for (const TensorInfo* t : draft.vectors) tensors->push_back(vector_row(*t));
  }
  return draft.info;
}

ModelInfo Model::inspect(const SyntheticOptions& what, const Device& on, const LoadOptions& how) {
  return draft_synthetic(what, on, how).info;
}

Model Model::synthetic(const SyntheticOptions& what, const Device& on, const LoadOptions& how) {
  auto model = std::make_shared<Impl>();
  Draft draft = draft_synthetic(what, on, how);
  add_text_side(draft, *model);
  bring_up(std::move(draft), how, *model);
  return Model(std::move(model));
}

std::vector<std::string> Model::architectures() {
  std::vector<std::string> names;
  for (const ModelEntry& e : registries().models) names.emplace_back(e.model_type);
  return names;
}

std::vector<std::string> Model::synthetic_shapes() {
  std::vector<std::string> names;
  for (const ModelPreset& p : registries().presets) names.emplace_back(p.name);
  return names;
}

const ModelInfo& Model::info() const { return impl_->info; }
bool Model::has_tokenizer() const { return impl_->tokenizer.has_value(); }
bool Model::has_chat_template() const { return impl_->chat_template.has_value(); }
const std::vector<std::int32_t>& Model::stop_tokens() const { return impl_->stop_tokens; }

const Tokenizer& Model::tokenizer() const {
  if (!impl_->tokenizer) throw Error(ErrorCode::not_found, "[model] it has no tokenizer");
  return *impl_->tokenizer;
}

std::string Model::render_chat(std::span<const ChatMessage> messages, const ChatOptions& how) const {
  if (!impl_->chat_template) {
    throw Error(ErrorCode::not_found,
                "[model] it has no chat template (chat_template.jinja or tokenizer_config.json, or tokenizer.chat_template of a GGUF file)");
  }
  Json input = impl_->template_tokens;
  Json::Array list;
  for (const ChatMessage& m : messages) {
    for (const std::string* part : {&m.role, &m.content}) {
      if (const auto at = utf8_error(*part)) {
        throw Error(ErrorCode::invalid_argument,
                    "[chat] message " + std::to_string(list.size() + 1) +
                        (part == &m.role ? ": its role" : ": its text") +
                        " is not UTF-8 at byte " + std::to_string(*at));
      }
    }
    list.push_back(Json::Object{{"role", m.role}, {"content", m.content}});
  }
  input.set("messages", std::move(list));
  input.set("add_generation_prompt", how.add_generation_prompt);
  if (!how.extra_json.empty()) {
    const Json extra = Json::parse(how.extra_json, "[chat] extra_json");
    if (!extra.is_object()) {
      throw Error(ErrorCode::invalid_argument,
                  std::string("[chat] extra_json: expected an object, found ") + extra.type_name());
    }
    for (const auto& [key, value] : extra.as_object()) {
      if (key == "messages" || key == "add_generation_prompt") {
        throw Error(ErrorCode::invalid_argument,
                    "[chat] extra_json: expected further values, found " + in_quotes(key) +
                        ", which is given beside it");
      }
      input.set(key, value);
    }
  }
  return impl_->chat_template->render(input);
}

std::string Model::render_chat(std::string_view user) const {
  const ChatMessage message{"user", std::string(user)};
  return render_chat(std::span(&message, 1));
}

Session Model::new_session() const { return Session(std::make_unique<Session::Impl>(impl_)); }
StepStats Model::stats() const { return impl_->engine->stats(); }
void Model::start_trace() const { impl_->engine->start_trace(); }
Trace Model::stop_trace() const { return impl_->engine->stop_trace(); }

}  // namespace nibble
