#include "core/text/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "core/base/quote.h"
#include "core/text/unicode.h"
#include "nibble/error.h"

namespace nibble {
namespace {

// A search may look so far ahead at each byte; no real token has a tenth of it.
constexpr std::size_t kLongestContent = 1024;

// Length of the well-formed character that ends at text.size(), which is not 0.
std::size_t last_length(std::string_view text) {
  std::size_t length = 1;
  while (length < text.size() && length < 4 &&
         (static_cast<unsigned char>(text[text.size() - length]) & 0xC0) == 0x80) {
    ++length;
  }
  return length;
}

std::int32_t code_point(std::string_view character) {
  std::int32_t c = 0;
  utf8proc_iterate(reinterpret_cast<const std::uint8_t*>(character.data()),
                   static_cast<utf8proc_ssize_t>(character.size()), &c);
  return c;
}

bool is_white_space(std::int32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// Letters, marks, decimal digits, connectors, joiners, and the few symbols that count as
// alphabetic (circled and squared Latin letters).
bool is_word(std::int32_t c) {
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
             (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
             (c >= 0x1F170 && c <= 0x1F189);
  }
}

bool word_before(std::string_view text) {
  return !text.empty() && is_word(code_point(text.substr(text.size() - last_length(text))));
}

bool word_after(std::string_view text) {
  return !text.empty() && is_word(code_point(text));
}

std::size_t without_space_at_end(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = last_length(text);
    if (!is_white_space(code_point(text.substr(text.size() - length)))) break;
    text.remove_suffix(length);
  }
  return text.size();
}

std::size_t space_at_start(std::string_view text) {
  std::size_t n = 0;
  while (n < text.size() && is_white_space(code_point(text.substr(n)))) {
    n += static_cast<std::size_t>(std::max(1, utf8_sequence_length(text.substr(n))));
  }
  return n;
}

AddedToken read_token(const JsonView& item) {
  AddedToken t;
  t.id = static_cast<std::int32_t>(item.integer("id", 0, kMaxTokenId));
  t.content = item.string("content");
  t.special = item.boolean_or("special", false);
  t.single_word = item.boolean_or("single_word", false);
  t.lstrip = item.boolean_or("lstrip", false);
  t.rstrip = item.boolean_or("rstrip", false);
  t.normalized = item.boolean_or("normalized", !t.special);
  if (t.content.empty() || t.content.size() > kLongestContent) {
    item.fail("content", "expected 1 to 1024 bytes, found " + std::to_string(t.content.size()));
  }
  return t;
}

}  // namespace

void TokenTrie::insert(std::string_view text, std::size_t value) {
  if (values_.empty()) values_.push_back(kNone);
  starts_[static_cast<unsigned char>(text[0])] = true;
  std::uint32_t node = 0;
  for (const char c : text) {
    const auto next = static_cast<std::uint32_t>(values_.size());
    const auto [at, added] = edges_.try_emplace(edge(node, c), next);
    if (added) values_.push_back(kNone);
    node = at->second;
  }
  values_[node] = value;
}

TokenTrie::Found TokenTrie::find(std::string_view text, std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    std::uint32_t node = 0;
    Found best{kNone, kNone, kNone};
    for (std::size_t i = begin; i < text.size(); ++i) {
      const auto at = edges_.find(edge(node, text[i]));
      if (at == edges_.end()) break;
      node = at->second;
      if (values_[node] != kNone) best = {begin, i + 1, values_[node]};
    }
    if (best.begin != kNone) return best;
  }
  return {kNone, kNone, kNone};
}

AddedTokens::AddedTokens(const JsonView& root, const Normalizer& normalizer, TokenTable& tokens) {
  if (root.json().find("added_tokens") == nullptr) return;
  const auto items = root.array("added_tokens");
  for (std::size_t i = 0; i < items.size(); ++i) {
    const JsonView item(items[i], root.path() + ": added_tokens[" + std::to_string(i) + "]");
    AddedToken token = read_token(item);
    const std::int32_t known = tokens.find(token.content);
    if (tokens.has(token.id) && tokens.at(token.id) != token.content) {
      item.fail("id", "the added token " + in_quotes(token.content) + " has the duplicate id " +
                          std::to_string(token.id) + " of " + in_quotes(tokens.at(token.id)));
    }
    if (known >= 0 && known != token.id) {
      item.fail("id", "the added token " + in_quotes(token.content) + " has the id " +
                          std::to_string(token.id) + ", and before that " + std::to_string(known));
    }
    if (known < 0) {
      tokens.put(token.id, token.content);
      tokens.index(token.id);
    }
    if (token.special) special_.insert(token.id);
    const std::string sought = token.normalized ? normalizer.apply(token.content) : token.content;
    if (!sought.empty()) tries_[token.normalized].insert(sought, list_.size());
    list_.push_back(std::move(token));
  }
}

std::vector<AddedTokens::Part> AddedTokens::split(std::string_view text, bool normalized) const {
  const TokenTrie& trie = tries_[normalized];
  std::vector<Part> parts;
  std::size_t done = 0;
  if (!trie.empty()) {
    auto found = trie.find(text, 0);
    for (; found.begin < text.size(); found = trie.find(text, found.end)) {
      const AddedToken& token = list_[found.value];
      std::size_t begin = found.begin, end = found.end;
      if (token.single_word &&
          (word_before(text.substr(0, begin)) || word_after(text.substr(end)))) {
        continue;
      }
      if (token.lstrip) begin = std::max(without_space_at_end(text.substr(0, begin)), done);
      if (token.rstrip) end += space_at_start(text.substr(end));
      if (done < begin) parts.push_back({text.substr(done, begin - done), -1});
      parts.push_back({text.substr(begin, end - begin), token.id});
      done = end;
    }
  }
  if (done < text.size()) parts.push_back({text.substr(done), -1});
  return parts;
}

}  // namespace nibble
