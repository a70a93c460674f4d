#include "core/text/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <optional>

#include "core/base/quote.h"
#include "nibble/error.h"

namespace nibble {
namespace {

constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kTypes = "tokenizer.ggml.token_type";

enum TokenType : std::int64_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

// The file names the way to split text, tokenizer.json spells it.
struct Split {
  const char* name;  // tokenizer.ggml.pre
  const char* regex;
};
constexpr Split kSplits[] = {
    {"qwen2",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"qwen35",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
};

[[noreturn]] void unsupported(const JsonView& m, const char* key, const std::string& what) {
  throw Error(ErrorCode::unsupported, m.path() + ": " + key + ": " + what);
}

const char* split_regex(const JsonView& m) {
  const std::string name = m.string("tokenizer.ggml.pre");
  std::string known;
  for (const Split& split : kSplits) {
    if (name == split.name) return split.regex;
    known += std::string(known.empty() ? "" : " or ") + split.name;
  }
  unsupported(m, "tokenizer.ggml.pre", "expected " + known + ", found " + in_quotes(name));
}

std::span<const Json> tokens_of(const JsonView& m) {
  const auto tokens = m.array(kTokens);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (!tokens[i].is_string()) {
      m.fail(kTokens, "expected strings, found " + shown(tokens[i]) + " at " + std::to_string(i));
    }
  }
  return tokens;
}

// Of each token; all are normal where the file says nothing.
std::vector<std::int64_t> types_of(const JsonView& m, std::size_t tokens) {
  std::vector<std::int64_t> out(tokens, kNormal);
  if (!m.has(kTypes)) return out;
  const auto types = m.array(kTypes);
  if (types.size() != tokens) {
    m.fail(kTypes, "expected " + std::to_string(tokens) + " entries as in " + kTokens + ", found " +
                       std::to_string(types.size()));
  }
  for (std::size_t i = 0; i < tokens; ++i) {
    const Json& type = types[i];
    const std::int64_t v = type.is_integer() && type.as_double() < 10 ? type.as_int() : 0;
    if (v != kNormal && v != kControl && v != kUserDefined && v != kUnused) {
      m.fail(kTypes, "expected 1, 3, 4 or 5 (normal, control, user defined, unused), found " +
                         shown(type) + " at " + std::to_string(i));
    }
    out[i] = v;
  }
  return out;
}

std::optional<std::int64_t> token_id(const JsonView& m, const char* key, std::size_t tokens) {
  if (!m.has(key)) return std::nullopt;
  return m.integer(key, 0, static_cast<std::int64_t>(tokens) - 1);
}

}  // namespace

Json gguf_tokenizer_json(const JsonView& m) {
  if (const std::string model = m.string("tokenizer.ggml.model"); model != "gpt2") {
    unsupported(m, "tokenizer.ggml.model",
                "expected gpt2 (byte-level BPE), found " + in_quotes(model));
  }
  for (const char* key : {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"}) {
    if (m.boolean_or(key, false)) unsupported(m, key, "expected false, found true");
  }
  const char* const regex = split_regex(m);
  const auto tokens = tokens_of(m);
  const auto types = types_of(m, tokens.size());
  Json::Object vocab;
  Json::Array added;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<std::int64_t>(i);
    if (types[i] == kUnused) continue;  // fills the embedding's rows up; a hole in tokenizer.json
    if (types[i] == kNormal) {
      vocab.emplace_back(tokens[i].as_string(), id);
    } else {
      added.emplace_back(Json::Object{{"id", id},
                                      {"content", tokens[i]},
                                      {"single_word", false},
                                      {"lstrip", false},
                                      {"rstrip", false},
                                      {"normalized", false},
                                      {"special", types[i] == kControl}});
    }
  }
  const auto merges = m.array("tokenizer.ggml.merges");
  const Json::Object bytes{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const Json::Object split{{"type", "Split"},
                           {"pattern", Json::Object{{"Regex", regex}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  return Json::Object{
      {"version", "1.0"},
      {"added_tokens", std::move(added)},
      {"normalizer", Json::Object{{"type", "NFC"}}},
      {"pre_tokenizer",
       Json::Object{{"type", "Sequence"}, {"pretokenizers", Json::Array{split, bytes}}}},
      {"decoder", Json::Object{{"type", "ByteLevel"}}},
      {"model", Json::Object{{"type", "BPE"},
                             {"vocab", std::move(vocab)},
                             {"merges", Json::Array(merges.begin(), merges.end())}}}};
}

std::vector<std::int32_t> gguf_stop_tokens(const JsonView& m) {
  const auto tokens = tokens_of(m);
  const auto types = types_of(m, tokens.size());
  std::vector<std::int32_t> out;
  const auto add = [&](std::int64_t id) {
    const auto v = static_cast<std::int32_t>(id);
    if (std::find(out.begin(), out.end(), v) == out.end()) out.push_back(v);
  };
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    if (const auto id = token_id(m, key, tokens.size())) add(*id);
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (types[i] != kControl) continue;
    const std::string& text = tokens[i].as_string();
    if (text == "<|im_end|>" || text == "<|endoftext|>") add(static_cast<std::int64_t>(i));
  }
  return out;
}

Json gguf_template_tokens(const JsonView& m) {
  constexpr std::array<std::pair<const char*, const char*>, 4> kNamed = {{
      {"bos_token", "tokenizer.ggml.bos_token_id"},
      {"eos_token", "tokenizer.ggml.eos_token_id"},
      {"pad_token", "tokenizer.ggml.padding_token_id"},
      {"unk_token", "tokenizer.ggml.unknown_token_id"},
  }};
  const auto tokens = tokens_of(m);
  Json out{Json::Object{}};
  for (const auto& [name, key] : kNamed) {
    if (const auto id = token_id(m, key, tokens.size()))
      out.set(name, tokens[static_cast<std::size_t>(*id)]);
  }
  return out;
}

}  // namespace nibble
