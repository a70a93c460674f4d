#include "core/api/model_files.h"

#include "core/api/impl.h"
#include "core/api/registries.h"
#include "core/base/files.h"
#include "core/base/quote.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/json_file.h"
#include "core/text/chat/source_limit.h"
#include "core/text/gguf_tokenizer.h"
#include "nibble/error.h"

namespace nibble {
namespace {

// An editor's byte order mark would become the first token of every prompt, a NUL ends nothing but
// would be one of its characters.
void tidy_template(std::string& source, const std::string& name) {
  if (source.starts_with("\xEF\xBB\xBF")) source.erase(0, 3);
  if (const std::size_t nul = source.find('\0'); nul != std::string::npos) {
    throw Error(ErrorCode::bad_file,
                name + ": expected text, found a NUL at byte " + std::to_string(nul));
  }
}

const GgufArchitecture& architecture_of(const GgufModel& model) {
  const std::string name = model.architecture();
  std::string known;
  for (const GgufArchitecture& a : registries().gguf) {
    if (name == a.name) return a;
    known += std::string(known.empty() ? "" : ", ") + a.name;
  }
  throw Error(ErrorCode::unsupported, model.source() +
                                          ": general.architecture: no GGUF model here is called " +
                                          in_quotes(name) + "; known are " + known);
}

}  // namespace

ModelFiles::ModelFiles(const std::filesystem::path& path) : path_(path) {
  std::error_code ignored;
  if (GgufModel::names(path) && !std::filesystem::is_directory(path, ignored)) {
    gguf_ = std::make_shared<const GgufModel>(path);
  } else {
    expect_folder(path, "", "config.json and safetensors");
  }
}

ModelFiles::Described ModelFiles::describe() const {
  return gguf_ ? describe_gguf() : describe_folder();
}

ModelFiles::Described ModelFiles::describe_folder() const {
  const std::filesystem::path& dir = path_;
  Described out;
  out.source = (dir / "config.json").string();
  out.config = read_json_object(out.source);
  const std::string quant_path = (dir / "hf_quant_config.json").string();
  Json quant;
  std::optional<JsonView> quant_view;
  if (file_present(quant_path)) {
    quant = read_json_object(quant_path);
    quant_view.emplace(quant, quant_path);
  }
  out.quant = QuantConfig::read(out.view(), quant_view ? &*quant_view : nullptr);
  out.tensors = std::make_shared<Checkpoint>(dir);
  return out;
}

ModelFiles::Described ModelFiles::describe_gguf() const {
  GgufPlan plan = architecture_of(*gguf_).plan(*gguf_);
  const auto tensors = std::make_shared<GgufSource>(gguf_, std::move(plan.tensors));
  Described out;
  out.source = gguf_->source() + " (as config.json)";
  out.config = std::move(plan.config);
  out.quant = QuantConfig::gguf(tensors->formats());
  out.tensors = tensors;
  return out;
}

std::optional<BpeTokenizer> ModelFiles::tokenizer() const {
  if (gguf_) {
    if (!gguf_->metadata().has("tokenizer.ggml.model")) return std::nullopt;
    return BpeTokenizer::from_json(gguf_tokenizer_json(gguf_->metadata()), gguf_->source());
  }
  if (!file_present(path_ / "tokenizer.json")) return std::nullopt;
  return BpeTokenizer::from_file(path_ / "tokenizer.json");
}

void ModelFiles::read_text(Model::Impl& model) const {
  if (auto bpe = tokenizer()) {
    model.tokenizer.emplace(
        std::make_shared<const Tokenizer::Impl>(Tokenizer::Impl{*std::move(bpe)}));
  }
  if (gguf_) {
    read_gguf_text(model);
  } else {
    read_folder_text(model);
  }
}

void ModelFiles::read_gguf_text(Model::Impl& model) const {
  constexpr const char* kTemplate = "tokenizer.chat_template";
  const JsonView metadata = gguf_->metadata();
  model.template_tokens = Json(Json::Object{});
  if (metadata.has("tokenizer.ggml.model")) {
    model.template_tokens = gguf_template_tokens(metadata);
    model.stop_tokens = gguf_stop_tokens(metadata);
  }
  if (!metadata.has(kTemplate)) return;
  std::string source = metadata.string(kTemplate), name = gguf_->source() + ": " + kTemplate;
  if (source.size() > kLargestTemplate) {
    metadata.fail(kTemplate, "expected at most " + std::to_string(kLargestTemplate) +
                                 " bytes, found " + std::to_string(source.size()));
  }
  tidy_template(source, name);
  model.chat_template.emplace(std::move(source), std::move(name));
}

void ModelFiles::read_folder_text(Model::Impl& model) const {
  const std::filesystem::path& dir = path_;
  const auto present = [&](const char* name) { return file_present(dir / name); };
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
    source = read_text_file(dir / "chat_template.jinja", kLargestTemplate);
    name = (dir / "chat_template.jinja").string();
  }
  if (!name.empty()) {
    tidy_template(source, name);
    model.chat_template.emplace(std::move(source), std::move(name));
  }
  if (present("generation_config.json")) {
    const Json config = read_json_object(dir / "generation_config.json");
    if (const Json* eos = config.find("eos_token_id"); eos != nullptr && !eos->is_null()) {
      const auto add = [&](const Json& id) {
        if (!id.is_integer() || id.as_double() < 0 || id.as_double() > 2147483647.0) {
          throw Error(ErrorCode::bad_file, (dir / "generation_config.json").string() +
                                               ": eos_token_id: expected token ids, found " +
                                               id.dump());
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
