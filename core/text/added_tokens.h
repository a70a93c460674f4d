// added_tokens.h: tokens that are found in the text before it is split ("<|im_start|>").
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/base/json.h"
#include "core/text/normalizer.h"
#include "core/text/token_table.h"

namespace nibble {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  // not inside a longer word
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // searched in the normalised text
  bool special = false;
};

// Finds the leftmost longest of a set of strings.
class TokenTrie {
 public:
  void insert(std::string_view text, std::size_t value);  // text is not empty; the last one wins
  struct Found {
    std::size_t begin, end, value;
  };
  // The next match at or after `from`; begin == npos if there is none.
  Found find(std::string_view text, std::size_t from) const;
  bool empty() const { return values_.empty(); }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  static std::uint64_t edge(std::uint64_t node, char c) {
    return node << 8 | static_cast<unsigned char>(c);
  }
  std::array<bool, 256> starts_{};
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;
  std::vector<std::size_t> values_;  // by node; the root is 0
};

class AddedTokens {
 public:
  // Reads "added_tokens" and enters those that the vocabulary lacks. Throws Error(bad_file).
  AddedTokens(const JsonView& root, const Normalizer& normalizer, TokenTable& tokens);

  struct Part {
    std::string_view text;
    std::int32_t id;  // -1: text between tokens
  };
  // Cuts at the tokens that are searched before (false) or after (true) normalisation.
  std::vector<Part> split(std::string_view text, bool normalized) const;
  bool is_special(std::int32_t id) const { return special_.contains(id); }

 private:
  std::vector<AddedToken> list_;
  std::array<TokenTrie, 2> tries_;  // by `normalized`
  std::unordered_set<std::int32_t> special_;
};

}  // namespace nibble
