// mention.h: whether an error message holds one of some words, as the hostile manifest asks.
#pragma once

#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::test {

inline std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// `path`, the file's own name, is cut out of the message first, as it often holds the word. A word
// counts if no letter or digit stands directly before or after it; a plural s is allowed. Case does
// not matter.
inline bool mentions(std::string message, const std::string& path,
                     const std::vector<std::string>& words) {
  for (auto at = message.find(path); !path.empty() && at != std::string::npos;
       at = message.find(path)) {
    message.erase(at, path.size());
  }
  message = lower_case(message);
  const auto inside_word = [&](std::size_t at) {
    if (at >= message.size()) return false;
    const auto c = static_cast<unsigned char>(message[at]);
    return std::isalnum(c) != 0 || c >= 0x80;
  };
  for (const std::string& raw : words) {
    const std::string word = lower_case(raw);
    for (auto at = message.find(word); at != std::string::npos; at = message.find(word, at + 1)) {
      std::size_t end = at + word.size();
      if (end < message.size() && message[end] == 's' && !inside_word(end + 1)) ++end;
      if ((at == 0 || !inside_word(at - 1)) && !inside_word(end)) return true;
    }
  }
  return false;
}

}  // namespace nibble::test
