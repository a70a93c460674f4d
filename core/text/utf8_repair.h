// utf8_repair.h: finds broken UTF-8, and makes well-formed UTF-8 of bytes that arrive in pieces.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace nibble {

class Utf8Repair {
 public:
  // Appends what is complete to `out`. Each maximal broken part becomes one U+FFFD (Unicode
  // standard, chapter 3.9); the start of a character that may still be completed waits.
  void push(std::string_view bytes, std::string& out);
  // What waits is broken now: one U+FFFD, or nothing.
  void flush(std::string& out);

 private:
  std::string waiting_;  // at most 3 bytes
  std::string joined_;   // these and what came next; a member so that it keeps its memory
};

// Where `text` stops being UTF-8: the byte at which no well-formed sequence begins.
std::optional<std::size_t> utf8_error(std::string_view text);

}  // namespace nibble
