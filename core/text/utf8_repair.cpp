#include "core/text/utf8_repair.h"

#include <algorithm>

#include "core/text/unicode.h"

namespace nibble {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Broken {
  std::size_t length;  // of the maximal part, at least 1
  bool open;           // ends with the text, and more bytes could complete it
};

Broken measure(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  const std::size_t need = lead >= 0xC2 && lead <= 0xDF   ? 2
                           : lead >= 0xE0 && lead <= 0xEF ? 3
                           : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                          : 1;
  std::size_t length = 1;
  for (; length < need && length < text.size(); ++length) {
    unsigned low = 0x80, high = 0xBF;
    if (length == 1) {  // no overlong forms, no surrogates, nothing above U+10FFFF
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    }
    if (byte(length) < low || byte(length) > high) return {length, false};
  }
  return {length, length < need};
}

}  // namespace

void Utf8Repair::push(std::string_view bytes, std::string& out) {
  if (!waiting_.empty()) {
    joined_ = waiting_;
    joined_ += bytes;
    bytes = joined_;
    waiting_.clear();
  }
  std::size_t good = 0;  // bytes in front that are well formed and not yet copied
  while (good < bytes.size()) {
    const int length = utf8_sequence_length(bytes.substr(good));
    if (length > 0) {
      good += static_cast<std::size_t>(length);
      continue;
    }
    out += bytes.substr(0, good);
    bytes.remove_prefix(good);
    good = 0;
    const Broken broken = measure(bytes);
    if (broken.open) {
      waiting_ = bytes;
      return;
    }
    out += kReplacement;
    bytes.remove_prefix(broken.length);
  }
  out += bytes;
}

void Utf8Repair::flush(std::string& out) {
  if (!waiting_.empty()) out += kReplacement;
  waiting_.clear();
}

std::optional<std::size_t> utf8_error(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const int length = utf8_sequence_length(text.substr(i));
    if (length == 0) return i;
    i += static_cast<std::size_t>(length);
  }
  return std::nullopt;
}

}  // namespace nibble
