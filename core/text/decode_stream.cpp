#include "core/text/decode_stream.h"

namespace nibble {

std::string DecodeStream::push(std::int32_t id) {
  std::string bytes, text;
  tokenizer_.append_bytes(id, skip_special_, first_, bytes);
  repair_.push(bytes, text);
  return text;
}

std::string DecodeStream::flush() {
  std::string text;
  repair_.flush(text);
  first_ = true;
  return text;
}

}  // namespace nibble
