// tokenizer.h: text to token ids and back, as tokenizer.json describes it (byte-level BPE).
//
// The stages of encode: added tokens are cut out, the rest is normalised, split into pieces
// (PCRE2), and each piece is merged; then the post-processor adds its tokens. "truncation" and
// "padding" of the file are ignored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"

namespace nibble {

// Immutable; copies share the tables. Safe from many threads.
class BpeTokenizer {
 public:
  // Throws Error(not_found | bad_file | unsupported).
  static BpeTokenizer from_file(const std::filesystem::path& tokenizer_json);
  static BpeTokenizer from_json(const Json& json, const std::string& source);

  // Throws Error(invalid_argument) when `text` is not UTF-8, Error(unsupported) when a regular
  // expression of the file backtracks beyond its limits on this text.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens = true) const;

  // Bytes that are no UTF-8 become U+FFFD. Throws Error(invalid_argument) for an id outside
  // [0, size()); a hole inside adds nothing.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;

  std::optional<std::int32_t> token_to_id(std::string_view token) const;
  std::string_view id_to_token(std::int32_t id) const;  // as in the file; empty for a hole
  std::size_t size() const;                             // ids are in [0, size)
  bool is_special(std::int32_t id) const;

 private:
  friend class DecodeStream;
  struct Impl;
  explicit BpeTokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  // Appends the bytes that `id` stands for; `first` is false after the first token.
  void append_bytes(std::int32_t id, bool skip_special, bool& first, std::string& out) const;

  std::shared_ptr<const Impl> impl_;
};

}  // namespace nibble
