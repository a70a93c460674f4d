// py_case.cpp: str.upper, lower, title, capitalize, swapcase, casefold with full Unicode mappings.
#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "core/text/chat/py_text.h"
#include "core/text/unicode.h"

namespace nibble::chat {
namespace {

struct Special {
  char32_t from;
  const char *upper, *title;
};
constexpr Special kSpecial[] = {
#include "core/text/chat/case_special.inc"
};

const Special* special(char32_t c) {
  const auto it = std::lower_bound(std::begin(kSpecial), std::end(kSpecial), c,
                                   [](const Special& s, char32_t x) { return s.from < x; });
  return it != std::end(kSpecial) && it->from == c ? it : nullptr;
}

char32_t map(utf8proc_int32_t (*f)(utf8proc_int32_t), char32_t c) {
  return static_cast<char32_t>(f(static_cast<utf8proc_int32_t>(c)));
}

void add_upper(std::string& out, char32_t c) {
  const Special* s = c < 0x80 ? nullptr : special(c);
  if (s && *s->upper) {
    out += s->upper;
  } else {
    append_utf8(out, map(utf8proc_toupper, c));
  }
}

void add_title(std::string& out, char32_t c) {
  const Special* s = c < 0x80 ? nullptr : special(c);
  if (s && *s->title) {
    out += s->title;
  } else {
    append_utf8(out, map(utf8proc_totitle, c));
  }
}

bool is_cased(char32_t c) {
  return is_upper(c) || is_lower(c) || is_title(c);
}

bool is_case_ignorable(char32_t c) {
  switch (c) {
    case '\'':
    case '.':
    case ':':
    case '^':
    case '`':
    case 0xB7:
    case 0x387:
    case 0x55F:
    case 0x5F4:
    case 0x2018:
    case 0x2019:
    case 0x2024:
    case 0x2027:
    case 0xFE13:
    case 0xFE52:
    case 0xFE55:
    case 0xFF07:
    case 0xFF0E:
    case 0xFF1A:
      return true;
    default:
      break;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return false;
  }
}

// A sigma is final when a cased letter stands before it and none after it. The walk is bounded, so
// that a run of ignorable characters cannot make it quadratic.
bool final_sigma(const std::u32string& s, std::size_t at) {
  constexpr std::size_t kFar = 64;
  bool before = false;
  for (std::size_t k = 1; k <= at && k <= kFar; ++k) {
    if (is_case_ignorable(s[at - k])) continue;
    before = is_cased(s[at - k]);
    break;
  }
  if (!before) return false;
  for (std::size_t k = at + 1; k < s.size() && k - at <= kFar; ++k) {
    if (is_case_ignorable(s[k])) continue;
    return !is_cased(s[k]);
  }
  return true;
}

void add_lower(std::string& out, const std::u32string& s, std::size_t at) {
  const char32_t c = s[at];
  if (c == 0x3A3) {
    append_utf8(out, final_sigma(s, at) ? 0x3C2 : 0x3C3);
  } else if (c == 0x130) {
    out += "i\xCC\x87";
  } else {
    append_utf8(out, map(utf8proc_tolower, c));
  }
}

std::u32string decode(std::string_view s) {
  std::u32string out;
  out.reserve(s.size());
  for (std::size_t at = 0; at < s.size();) {
    int n;
    out += decode_at(s, at, &n);
    at += static_cast<std::size_t>(n);
  }
  return out;
}

}  // namespace

std::string to_upper(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (const char32_t c : decode(s)) add_upper(out, c);
  return out;
}

std::string to_lower(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  const std::u32string u = decode(s);
  for (std::size_t i = 0; i < u.size(); ++i) add_lower(out, u, i);
  return out;
}

std::string to_title(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  const std::u32string u = decode(s);
  bool inside = false;
  for (std::size_t i = 0; i < u.size(); ++i) {
    inside ? add_lower(out, u, i) : add_title(out, u[i]);
    inside = is_cased(u[i]);
  }
  return out;
}

std::string to_capital(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  const std::u32string u = decode(s);
  for (std::size_t i = 0; i < u.size(); ++i) i == 0 ? add_title(out, u[i]) : add_lower(out, u, i);
  return out;
}

std::string swap_case(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  const std::u32string u = decode(s);
  for (std::size_t i = 0; i < u.size(); ++i) {
    if (is_upper(u[i])) {
      add_lower(out, u, i);
    } else if (is_lower(u[i])) {
      add_upper(out, u[i]);
    } else {
      append_utf8(out, u[i]);
    }
  }
  return out;
}

std::string fold_case(std::string_view s) {
  std::string out;
  for (const char32_t c : decode(s)) {
    utf8proc_int32_t folded[8];
    int boundary = 0;
    const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), folded, 8,
                                           UTF8PROC_CASEFOLD, &boundary);
    if (n < 1 || n > 8) append_utf8(out, c);
    for (utf8proc_ssize_t k = 0; k < n && n <= 8; ++k)
      append_utf8(out, static_cast<char32_t>(folded[k]));
  }
  return out;
}

}  // namespace nibble::chat
