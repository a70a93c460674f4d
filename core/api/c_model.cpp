// c_model.cpp: the C ABI of models and text.
#include "core/api/c_support.h"
#include "core/base/json.h"
#include "core/base/quote.h"

namespace nibble::c_api {
namespace {

// [{"role": ..., "content": ...}, ...]; more than the C++ API can carry is refused, not dropped.
std::vector<ChatMessage> read_messages(const char* text) {
  const Json json = Json::parse(text, "messages");
  const auto refuse = [](ErrorCode code, const std::string& what) {
    throw Error(code, "[nibble_render_chat] messages: " + what);
  };
  if (!json.is_array()) {
    refuse(ErrorCode::invalid_argument,
           std::string("expected an array of objects, found ") + json.type_name());
  }
  std::vector<ChatMessage> messages;
  for (const Json& item : json.as_array()) {
    const std::string where = "message " + std::to_string(messages.size()) + ": ";
    if (!item.is_object()) {
      refuse(ErrorCode::invalid_argument, where + "expected an object, found " + item.type_name());
    }
    for (const char* key : {"role", "content"}) {
      const Json* value = item.find(key);
      if (!value || !value->is_string()) {
        refuse(ErrorCode::invalid_argument, where + "expected a string \"" + key + "\", found " +
                                                (value ? value->type_name() : "nothing"));
      }
    }
    for (const auto& [key, value] : item.as_object()) {
      if (key != "role" && key != "content") {
        refuse(ErrorCode::unsupported,
               where + "only \"role\" and \"content\" are taken, found " + in_quotes(key));
      }
    }
    messages.push_back({item.find("role")->as_string(), item.find("content")->as_string()});
  }
  return messages;
}

}  // namespace
}  // namespace nibble::c_api

using namespace nibble::c_api;

extern "C" {

nibble_status nibble_model_load(const char* path, const nibble_load_options* options,
                                nibble_model** out) {
  constexpr auto who = "nibble_model_load";
  return guarded(who, [&] {
    need(path, who, "path");
    need(out, who, "out");
    const nibble_load_options o = read(options, who);
    *out = new nibble_model{nibble::Model::load(path, device_of(o), load_options_of(o, who))};
    return NIBBLE_OK;
  });
}

nibble_status nibble_model_synthetic(const nibble_synthetic_options* what,
                                     const nibble_load_options* options, nibble_model** out) {
  constexpr auto who = "nibble_model_synthetic";
  return guarded(who, [&] {
    need(what, who, "what");
    need(out, who, "out");
    const nibble_synthetic_options s = read(what, who);
    const nibble_load_options o = read(options, who);
    *out = new nibble_model{
        nibble::Model::synthetic(synthetic_options_of(s), device_of(o), load_options_of(o, who))};
    return NIBBLE_OK;
  });
}

void nibble_model_free(nibble_model* model) {
  delete model;
}

nibble_status nibble_model_info(const nibble_model* model, char** json, size_t* length) {
  constexpr auto who = "nibble_model_info";
  return guarded(who, [&] {
    const auto& m = need(model, who, "model").model;
    need(json, who, "json");
    give_text(m.info().json(), json, length);
    return NIBBLE_OK;
  });
}

nibble_status nibble_model_stats(const nibble_model* model, char** json, size_t* length) {
  constexpr auto who = "nibble_model_stats";
  return guarded(who, [&] {
    const auto& m = need(model, who, "model").model;
    need(json, who, "json");
    give_text(m.stats().json(), json, length);
    return NIBBLE_OK;
  });
}

nibble_status nibble_tokenize(const nibble_model* model, const char* text, size_t length,
                              int add_special, int32_t* out, size_t capacity, size_t* count) {
  constexpr auto who = "nibble_tokenize";
  return guarded(who, [&] {
    const auto& m = need(model, who, "model").model;
    need(count, who, "count");
    const auto bytes = array(text, length, who, "text");
    const std::vector<std::int32_t> ids =
        m.tokenizer().encode({bytes.data(), bytes.size()}, add_special != 0);
    return give_array<std::int32_t>(ids, out, capacity, count, who);
  });
}

nibble_status nibble_detokenize(const nibble_model* model, const int32_t* ids, size_t count,
                                int skip_special, char** text, size_t* length) {
  constexpr auto who = "nibble_detokenize";
  return guarded(who, [&] {
    const auto& m = need(model, who, "model").model;
    need(text, who, "text");
    give_text(m.tokenizer().decode(array(ids, count, who, "ids"), skip_special != 0), text, length);
    return NIBBLE_OK;
  });
}

nibble_status nibble_render_chat(const nibble_model* model, const char* messages_json,
                                 const char* extra_json, int add_generation_prompt, char** text,
                                 size_t* length) {
  constexpr auto who = "nibble_render_chat";
  return guarded(who, [&] {
    const auto& m = need(model, who, "model").model;
    need(messages_json, who, "messages_json");
    need(text, who, "text");
    nibble::ChatOptions how;
    how.add_generation_prompt = add_generation_prompt != 0;
    if (extra_json) how.extra_json = extra_json;
    give_text(m.render_chat(read_messages(messages_json), how), text, length);
    return NIBBLE_OK;
  });
}

}  // extern "C"
