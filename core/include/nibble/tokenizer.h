// tokenizer.h: text to token ids and back, as tokenizer.json says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/export.h"

namespace nibble {

// Immutable, copies share; safe from any thread.
class NIBBLE_API Tokenizer {
 public:
  // tokenizer.json of a folder, or a GGUF file's metadata, without the weights. Throws Error(not_found | bad_file | unsupported).
  static Tokenizer load(const std::filesystem::path& dir);
  // add_special: tokens that the post-processor adds (a BOS, say).
  std::vector<std::int32_t> encode(std::string_view text, bool add_special = true) const;
  // Ill-formed UTF-8 becomes U+FFFD. Throws Error(invalid_argument) for an id that does not exist.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;
  std::optional<std::int32_t> id(std::string_view token) const;
  std::string_view token(std::int32_t id) const;
  std::size_t size() const;

  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl);
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace nibble
