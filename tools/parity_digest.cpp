#include "tools/parity_digest.h"

#include <fmt/format.h>

#include "core/checkpoint/json_file.h"
#include "nibble/error.h"
#include "tools/failure.h"

namespace nibble::tool {
namespace {

std::int64_t whole(const Json& json, const char* key, std::int64_t least) {
  const Json* v = json.find(key);
  if (v == nullptr || !v->is_integer() || v->as_int() < least) {
    throw Failure(kFailed,
                  fmt::format("digest: {}: expected a whole number of at least {}, found {}", key,
                              least, v == nullptr ? "nothing" : v->dump()));
  }
  return v->as_int();
}

std::string text(const Json& json, const char* key) {
  const Json* v = json.find(key);
  if (v == nullptr || !v->is_string()) {
    throw Failure(kFailed, fmt::format("digest: {}: expected a string, found {}", key,
                                       v == nullptr ? "nothing" : v->dump()));
  }
  return v->as_string();
}

const Json::Array& list(const Json& json, const char* key) {
  const Json* v = json.find(key);
  if (v == nullptr || !v->is_array()) {
    throw Failure(kFailed, fmt::format("digest: {}: expected a list, found {}", key,
                                       v == nullptr ? "nothing" : v->type_name()));
  }
  return v->as_array();
}

}  // namespace

Json digest_json(const ParityDigest& digest, const ParityOptions& how) {
  Json::Array prompt(how.prompt.begin(), how.prompt.end()), kinds;
  for (const auto& k : digest.kinds) {
    kinds.push_back(Json::Object{
        {"kind", k.kind}, {"ops", k.ops}, {"elements", k.elements}, {"digest", k.digest}});
  }
  return Json::Object{
      {"profile", digest.device.profile},
      {"activations", how.activations == Activations::declared ? "declared" : "a16"},
      {"prompt", std::move(prompt)},
      {"decode", how.decode},
      {"chunk", how.chunk},
      {"kinds", std::move(kinds)}};
}

Json read_digest(const std::filesystem::path& file, ParityOptions& how) {
  Json json;
  try {
    json = read_json_object(file);
  } catch (const Error& e) {
    throw Failure(kFailed, e.what());
  }
  text(json, "profile");
  list(json, "kinds");
  how.activations =
      text(json, "activations") == "declared" ? Activations::declared : Activations::a16;
  how.decode = static_cast<int>(whole(json, "decode", 0));
  how.chunk = static_cast<int>(whole(json, "chunk", 64));
  how.prompt.clear();
  for (const Json& id : list(json, "prompt")) {
    if (!id.is_integer())
      throw Failure(kFailed,
                    fmt::format("digest: prompt: expected token ids, found {}", id.dump()));
    how.prompt.push_back(static_cast<std::int32_t>(id.as_int()));
  }
  return json;
}

std::vector<std::string> digest_differences(const Json& expected, const Json& found) {
  std::vector<std::string> lines;
  if (text(expected, "profile") != text(found, "profile")) {
    lines.push_back(fmt::format("profile: expected {}, found {}", text(expected, "profile"),
                                text(found, "profile")));
    return lines;
  }
  const Json::Array &wanted = list(expected, "kinds"), &given = list(found, "kinds");
  for (const Json& w : wanted) {
    const std::string kind = text(w, "kind");
    const Json* g = nullptr;
    for (const Json& candidate : given) {
      if (text(candidate, "kind") == kind) g = &candidate;
    }
    if (g == nullptr) {
      lines.push_back(fmt::format("{}: expected {} ops, found none", kind, whole(w, "ops", 0)));
    } else if (text(w, "digest") != text(*g, "digest") ||
               whole(w, "ops", 0) != whole(*g, "ops", 0)) {
      lines.push_back(fmt::format("{}: expected {} over {} ops, found {} over {}", kind,
                                  text(w, "digest"), whole(w, "ops", 0), text(*g, "digest"),
                                  whole(*g, "ops", 0)));
    }
  }
  if (wanted.size() != given.size()) {
    lines.push_back(fmt::format("kinds: expected {}, found {}", wanted.size(), given.size()));
  }
  return lines;
}

}  // namespace nibble::tool
