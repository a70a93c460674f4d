// decode_stream.h: text of tokens as they arrive.
#pragma once

#include <cstdint>
#include <string>

#include "core/text/tokenizer.h"
#include "core/text/utf8_repair.h"

namespace nibble {

// The pieces and the flush add up to BpeTokenizer::decode of the same ids; each is well-formed UTF-8
// and never half a character. One thread at a time.
class DecodeStream {
 public:
  explicit DecodeStream(const BpeTokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // May be empty while a character is incomplete. Throws Error(invalid_argument) for an id outside
  // the vocabulary; the stream is then as before.
  std::string push(std::int32_t id);
  // The same, appended to `out`: no memory is taken once the strings have grown to the longest token.
  void push(std::int32_t id, std::string& out);
  // Ends the text (one U+FFFD if a character was cut) and starts anew.
  std::string flush();

 private:
  BpeTokenizer tokenizer_;
  bool skip_special_;
  bool first_ = true;
  Utf8Repair repair_;
  std::string bytes_;  // of the latest token
};

}  // namespace nibble
