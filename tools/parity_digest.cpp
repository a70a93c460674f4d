#include "core/base/quote.h"
#include "tools/parity_digest.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/checkpoint/json_file.h"
#include "nibble/error.h"
#include "tools/failure.h"

namespace nibble::tool {
namespace {

constexpr std::int64_t kAny = std::int64_t{1} << 62;

std::int64_t whole(const Json& json, const char* key, std::int64_t least, std::int64_t most = kAny) {
  const Json* v = json.find(key);
  if (v == nullptr || !v->is_integer() || v->as_double() < static_cast<double>(least) ||
      v->as_double() > static_cast<double>(most)) {
    throw Failure(kFailed, fmt::format("digest: {}: expected a whole number from {} to {}, found {}", key, least,
                                       most, v == nullptr ? "nothing" : shown(*v)));
  }
  return v->as_int();
}

std::string text(const Json& json, const char* key) {
  const Json* v = json.find(key);
  if (v == nullptr || !v->is_string()) {
    throw Failure(kFailed, fmt::format("digest: {}: expected a string, found {}", key,
                                       v == nullptr ? "nothing" : shown(*v)));
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

// What a file holds, as it may stand on a terminal.
std::string plain(const std::string& text) {
  const std::string quoted = in_quotes(text);
  return quoted == '"' + text + '"' ? text : quoted;
}
std::string word(const Json& json, const char* key) { return plain(text(json, key)); }

}  // namespace

Json digest_json(const ParityDigest& digest, const ParityOptions& how) {
  Json::Array prompt(how.prompt.begin(), how.prompt.end()), kinds;
  for (const auto& k : digest.kinds) {
    kinds.push_back(Json::Object{
        {"kind", k.kind}, {"ops", k.ops}, {"elements", k.elements}, {"digest", k.digest}});
  }
  Json::Object run{
      {"profile", digest.device.profile},
      {"activations", activations_name(how.activations)},
      {"prompt", std::move(prompt)},
      {"decode", how.decode},
      {"chunk", how.chunk}};
  if (how.kv_cache_dtype != KvCacheDtype::automatic) {
    run.push_back({"kv_cache_dtype", kv_cache_dtype_name(how.kv_cache_dtype)});
  }
  run.push_back({"kinds", std::move(kinds)});
  return run;
}

Json read_digest(const std::filesystem::path& file, ParityOptions& how) {
  Json json;
  try {
    json = read_json_object(file);
  } catch (const Error& e) {
    throw Failure(kFailed, e.what());
  }
  try {
    text(json, "profile");
    const std::string activations = text(json, "activations");
    try {
      how.activations = activations_from_name(activations);
    } catch (const Error&) {
      throw Failure(kFailed, fmt::format("digest: activations: expected a16, declared or a8, found {}",
                                         in_quotes(activations)));
    }
    how.kv_cache_dtype = KvCacheDtype::automatic;
    if (json.find("kv_cache_dtype") != nullptr) {
      const std::string kv = text(json, "kv_cache_dtype");
      if (kv != "auto" && kv != "fp8") {
        throw Failure(kFailed, fmt::format("digest: kv_cache_dtype: expected auto or fp8, found {}", in_quotes(kv)));
      }
      how.kv_cache_dtype = kv_cache_dtype_from_name(kv);
    }
    how.decode = static_cast<int>(whole(json, "decode", 0, 1 << 24));
    how.chunk = static_cast<int>(whole(json, "chunk", 64, 1 << 20));
    if (how.chunk % 64 != 0) {
      throw Failure(kFailed, fmt::format("digest: chunk: expected a multiple of 64, found {}", how.chunk));
    }
    how.prompt.clear();
    for (const Json& id : list(json, "prompt")) {
      const Json one = Json(Json::Object{{"prompt", id}});
      how.prompt.push_back(static_cast<std::int32_t>(whole(one, "prompt", 0, (std::int64_t{1} << 31) - 1)));
    }
    if (how.prompt.empty()) throw Failure(kFailed, "digest: prompt: expected at least one token, found none");
    for (const Json& kind : list(json, "kinds")) {
      if (!kind.is_object()) throw Failure(kFailed, fmt::format("digest: kinds: expected objects, found {}", shown(kind)));
      text(kind, "kind");
      text(kind, "digest");
      whole(kind, "ops", 0);
      whole(kind, "elements", 0);
    }
  } catch (const Failure& e) {
    throw Failure(e.code(), fmt::format("{}: {}", file.string(), e.what()));
  }
  return json;
}

std::vector<std::string> digest_differences(const Json& expected, const Json& found) {
  std::vector<std::string> lines;
  if (text(expected, "profile") != text(found, "profile")) {
    lines.push_back(fmt::format("profile: expected {}, found {}", word(expected, "profile"),
                                word(found, "profile")));
    return lines;
  }
  // Both lists are in order of first appearance, which the program fixes.
  const Json::Array &wanted = list(expected, "kinds"), &given = list(found, "kinds");
  for (std::size_t i = 0; i < std::max(wanted.size(), given.size()); ++i) {
    const auto describe = [i](const Json::Array& kinds) {
      return i >= kinds.size() ? std::string("nothing")
                               : fmt::format("{} over {} ops with {} elements", word(kinds[i], "digest"),
                                             whole(kinds[i], "ops", 0), whole(kinds[i], "elements", 0));
    };
    const std::string kind = text((i < wanted.size() ? wanted : given)[i], "kind");
    const bool same_kind = i < wanted.size() && i < given.size() && text(given[i], "kind") == kind;
    if (!same_kind || describe(wanted) != describe(given)) {
      lines.push_back(fmt::format("{}: expected {}, found {}{}", plain(kind), describe(wanted), describe(given),
                                  same_kind || i >= given.size() ? "" : " of " + word(given[i], "kind")));
    }
  }
  return lines;
}

}  // namespace nibble::tool
