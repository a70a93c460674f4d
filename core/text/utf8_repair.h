// utf8_repair.h: makes well-formed UTF-8 of bytes that arrive in pieces.
#pragma once

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

}  // namespace nibble
