// quote.h: values out of a file, for error messages.
#pragma once

#include <string>
#include <string_view>

#include "core/base/json.h"

namespace nibble {

// At most `limit` bytes, cut between characters.
inline std::string shortened(std::string text, std::size_t limit = 80) {
  if (text.size() <= limit) return text;
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0) == 0x80) --limit;
  return text.substr(0, limit) + "...";
}

// As JSON, so that quotes and control characters are visible.
inline std::string in_quotes(std::string_view text) {
  return Json(shortened(std::string(text.substr(0, 128)))).dump();
}
inline std::string shown(const Json& value) {
  return value.is_string() ? in_quotes(std::string_view(value.as_string()))
                           : shortened(value.dump());
}

}  // namespace nibble
