// mention.h: whether an error message names one of the words that it should.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

namespace nibble::test {

// A word counts when no letter or digit stands directly before or after it (a plural s may follow);
// case does not matter. `path`, the file's own path, is cut out of the message first.
inline bool mentions(std::string message, const std::string& path,
                     const std::vector<std::string>& words) {
  for (std::size_t at; !path.empty() && (at = message.find(path)) != std::string::npos;) {
    message.erase(at, path.size());
  }
  const auto lower = [](std::string s) {
    std::transform(s.begin(), s.end(), s.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return s;
  };
  message = lower(std::move(message));
  const auto joins = [&](std::size_t at) {
    return at < message.size() && std::isalnum(static_cast<unsigned char>(message[at]));
  };
  for (const std::string& w : words) {
    const std::string word = lower(w);
    for (std::size_t at = 0; (at = message.find(word, at)) != std::string::npos; ++at) {
      std::size_t end = at + word.size();
      if (end < message.size() && message[end] == 's') ++end;
      if ((at == 0 || !joins(at - 1)) && (!joins(end) || !joins(at + word.size()))) return true;
    }
  }
  return false;
}

}  // namespace nibble::test
