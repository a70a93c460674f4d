// mention.h: does an error say one of the words that the manifest of hostile files asks for?
#pragma once

#include <string>
#include <vector>

namespace nibble::test {

// A word stands on its own: no letter or digit directly before or after, whatever the case; a
// plural s is allowed. The file's own path is cut out first, its name often holds the word.
inline bool mentions(std::string message, const std::string& path,
                     const std::vector<std::string>& words) {
  const auto lower = [](std::string text) {
    for (char& c : text) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
    }
    return text;
  };
  for (std::size_t at; !path.empty() && (at = message.find(path)) != std::string::npos;) {
    message.erase(at, path.size());
  }
  message = lower(message);
  const auto alnum = [&](std::size_t i) {
    const char c = i < message.size() ? message[i] : ' ';
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  };
  for (const std::string& each : words) {
    const std::string word = lower(each);
    for (std::size_t at = message.find(word); at != std::string::npos;
         at = message.find(word, at + 1)) {
      if (at > 0 && alnum(at - 1)) continue;
      const std::size_t end = at + word.size();
      for (const char* plural : {"", "s"}) {
        const std::string tail = plural;
        if (message.compare(end, tail.size(), tail) == 0 && !alnum(end + tail.size())) return true;
      }
    }
  }
  return false;
}

}  // namespace nibble::test
