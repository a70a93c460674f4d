// quote.h: what came from outside, a file's value or a caller's word, as error messages show it.
#pragma once

#include <string>
#include <string_view>

#include "core/base/json.h"

namespace nibble {

inline constexpr std::size_t kShownBytes = 80;    // enough to know a value again
inline constexpr std::size_t kShownPath = 4096;  // PATH_MAX: no real path is cut

// At most `limit` bytes, cut between characters.
inline std::string shortened(std::string text, std::size_t limit = kShownBytes) {
  if (text.size() <= limit) return text;
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0) == 0x80) --limit;
  return text.substr(0, limit) + "...";
}

// As JSON, so that quotes and control characters are visible.
inline std::string in_quotes(std::string_view text, std::size_t limit = kShownBytes) {
  return Json(shortened(std::string(text.substr(0, limit + 4)), limit)).dump();
}
inline std::string shown(const Json& value) {
  return value.is_string() ? in_quotes(std::string_view(value.as_string()))
                           : shortened(value.dump());
}

}  // namespace nibble
