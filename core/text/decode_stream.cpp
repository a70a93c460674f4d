#include "core/text/decode_stream.h"

namespace nibble {

std::string DecodeStream::push(std::int32_t id) {
  std::string text;
  push(id, text);
  return text;
}

void DecodeStream::push(std::int32_t id, std::string& out) {
  bytes_.clear();
  tokenizer_.append_bytes(id, skip_special_, first_, bytes_);
  repair_.push(bytes_, out);
}

std::string DecodeStream::flush() {
  std::string text;
  repair_.flush(text);
  first_ = true;
  return text;
}

}  // namespace nibble
