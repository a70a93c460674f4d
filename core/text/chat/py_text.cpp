#include "core/text/chat/py_text.h"

#include <utf8proc.h>

#include <algorithm>

#include "core/text/unicode.h"

namespace nibble::chat {

bool valid_utf8(std::string_view s) {
  while (!s.empty()) {
    const int n = utf8_sequence_length(s);
    if (n == 0) return false;
    s.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

std::size_t count_points(std::string_view s) {
  return static_cast<std::size_t>(std::count_if(
      s.begin(), s.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::size_t offset_of(std::string_view s, std::size_t n) {
  std::size_t at = 0;
  for (; n > 0 && at < s.size(); --n) {
    ++at;
    while (at < s.size() && (static_cast<unsigned char>(s[at]) & 0xC0) == 0x80) ++at;
  }
  return at;
}

char32_t decode_at(std::string_view s, std::size_t at, int* length) {
  const auto byte = [&](std::size_t k) {
    return at + k < s.size() ? static_cast<unsigned char>(s[at + k]) : 0u;
  };
  const unsigned b = byte(0);
  if (b < 0x80) {
    *length = 1;
    return b;
  }
  if (b < 0xE0) {
    *length = 2;
    return (b & 31) << 6 | (byte(1) & 63);
  }
  if (b < 0xF0) {
    *length = 3;
    return (b & 15) << 12 | (byte(1) & 63) << 6 | (byte(2) & 63);
  }
  *length = 4;
  return (b & 7) << 18 | (byte(1) & 63) << 12 | (byte(2) & 63) << 6 | (byte(3) & 63);
}

namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

struct Span {
  char32_t first, last;
};
template <std::size_t N>
bool inside(const Span (&spans)[N], char32_t c) {
  return std::any_of(std::begin(spans), std::end(spans),
                     [&](const Span& s) { return c >= s.first && c <= s.last; });
}

constexpr Span kOtherUpper[] = {
    {0x2160, 0x216F}, {0x24B6, 0x24CF}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
constexpr Span kOtherLower[] = {
    {0xAA, 0xAA},       {0xBA, 0xBA},       {0x2B0, 0x2B8},     {0x2C0, 0x2C1},    {0x2E0, 0x2E4},
    {0x345, 0x345},     {0x37A, 0x37A},     {0x1D2C, 0x1D6A},   {0x1D78, 0x1D78},  {0x1D9B, 0x1DBF},
    {0x2071, 0x2071},   {0x207F, 0x207F},   {0x2090, 0x209C},   {0x2170, 0x217F},  {0x24D0, 0x24E9},
    {0x2C7C, 0x2C7D},   {0xA69C, 0xA69D},   {0xA770, 0xA770},   {0xA7F8, 0xA7F9},  {0xAB5C, 0xAB5F},
    {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA}};
// Digits that are no decimals: superscripts, circled and the like.
constexpr Span kOtherDigit[] = {
    {0xB2, 0xB3},       {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},
    {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
    {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
    {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
    {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};

}  // namespace

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_printable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_alpha(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(char32_t c) {
  return c < 0x80 ? c >= '0' && c <= '9' : category(c) == UTF8PROC_CATEGORY_ND;
}
bool is_digit(char32_t c) {
  return is_decimal(c) || inside(kOtherDigit, c);
}
bool is_numeric(char32_t c) {
  const auto k = category(c);
  return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}
bool is_upper(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z';
  return category(c) == UTF8PROC_CATEGORY_LU || inside(kOtherUpper, c);
}
bool is_lower(char32_t c) {
  if (c < 0x80) return c >= 'a' && c <= 'z';
  return category(c) == UTF8PROC_CATEGORY_LL || inside(kOtherLower, c);
}
bool is_title(char32_t c) {
  return c >= 0x80 && category(c) == UTF8PROC_CATEGORY_LT;
}
bool is_word(char32_t c) {
  return c == '_' || is_alpha(c) || is_numeric(c);
}

bool is_identifier(std::string_view s) {
  for (std::size_t at = 0; at < s.size();) {
    int n;
    const char32_t c = decode_at(s, at, &n);
    const auto k = category(c);
    const bool start = c == '_' || is_alpha(c) || k == UTF8PROC_CATEGORY_NL;
    const bool more = k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_MN ||
                      k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_PC;
    if (!start && (at == 0 || !more)) return false;
    at += static_cast<std::size_t>(n);
  }
  return !s.empty();
}

std::u32string char_set(std::string_view s) {
  std::u32string out;
  for (std::size_t at = 0; at < s.size();) {
    int n;
    out += decode_at(s, at, &n);
    at += static_cast<std::size_t>(n);
  }
  std::sort(out.begin(), out.end());
  return out;
}

namespace {

bool drops(char32_t c, const std::u32string* chars) {
  return chars ? std::binary_search(chars->begin(), chars->end(), c) : is_space(c);
}

// Knuth, Morris and Pratt: taken when the direct search could be slow.
template <class Text>
std::size_t find_linear(const Text& s, const Text& what, std::size_t from) {
  std::vector<std::uint32_t> back(what.size(), 0);
  for (std::size_t i = 1, k = 0; i < what.size(); ++i) {
    while (k > 0 && what[i] != what[k]) k = back[k - 1];
    if (what[i] == what[k]) ++k;
    back[i] = static_cast<std::uint32_t>(k);
  }
  for (std::size_t i = from, k = 0; i < s.size(); ++i) {
    while (k > 0 && s[i] != what[k]) k = back[k - 1];
    if (s[i] == what[k]) ++k;
    if (k == what.size()) return i + 1 - k;
  }
  return std::string_view::npos;
}

constexpr std::size_t kShortNeedle = 32;

}  // namespace

std::size_t find_in(std::string_view s, std::string_view what, std::size_t from) {
  if (what.size() <= kShortNeedle) return s.find(what, from);
  if (from > s.size() || what.size() > s.size() - from) return std::string_view::npos;
  return find_linear(s, what, from);
}

std::size_t rfind_in(std::string_view s, std::string_view what) {
  if (what.size() <= kShortNeedle) return s.rfind(what);
  if (what.size() > s.size()) return std::string_view::npos;
  const std::string turned(s.rbegin(), s.rend()), turned_what(what.rbegin(), what.rend());
  const auto at = find_linear(turned, turned_what, 0);
  return at == std::string::npos ? at : s.size() - at - what.size();
}

std::string_view strip_left(std::string_view s, const std::u32string* chars) {
  std::size_t at = 0;
  while (at < s.size()) {
    int n;
    if (!drops(decode_at(s, at, &n), chars)) break;
    at += static_cast<std::size_t>(n);
  }
  return s.substr(at);
}

std::string_view strip_right(std::string_view s, const std::u32string* chars) {
  while (!s.empty()) {
    std::size_t at = s.size() - 1;
    while (at > 0 && (static_cast<unsigned char>(s[at]) & 0xC0) == 0x80) --at;
    int n;
    if (!drops(decode_at(s, at, &n), chars)) break;
    s = s.substr(0, at);
  }
  return s;
}

std::vector<std::string_view> split_space(std::string_view s, std::int64_t most) {
  std::vector<std::string_view> out;
  s = strip_left(s);
  while (!s.empty()) {
    if (most >= 0 && static_cast<std::int64_t>(out.size()) == most) {
      out.push_back(s);
      break;
    }
    std::size_t at = 0;
    int n = 0;
    while (at < s.size() && !is_space(decode_at(s, at, &n))) at += static_cast<std::size_t>(n);
    out.push_back(s.substr(0, at));
    s = strip_left(s.substr(at));
  }
  return out;
}

std::vector<std::string_view> split_space_right(std::string_view s, std::int64_t most) {
  std::vector<std::string_view> out;
  s = strip_right(s);
  while (!s.empty()) {
    if (most >= 0 && static_cast<std::int64_t>(out.size()) == most) {
      out.push_back(s);
      break;
    }
    std::size_t at = s.size();
    while (at > 0) {
      std::size_t before = at - 1;
      while (before > 0 && (static_cast<unsigned char>(s[before]) & 0xC0) == 0x80) --before;
      int n;
      if (is_space(decode_at(s, before, &n))) break;
      at = before;
    }
    out.push_back(s.substr(at));
    s = strip_right(s.substr(0, at));
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string_view> split_on(std::string_view s, std::string_view by, std::int64_t most) {
  std::vector<std::string_view> out;
  while (most < 0 || static_cast<std::int64_t>(out.size()) < most) {
    const auto at = find_in(s, by);
    if (at == std::string_view::npos) break;
    out.push_back(s.substr(0, at));
    s.remove_prefix(at + by.size());
  }
  out.push_back(s);
  return out;
}

std::vector<std::string_view> split_on_right(std::string_view s, std::string_view by,
                                             std::int64_t most) {
  // From the right means: the pieces of the turned text, in turn.
  const std::string turned(s.rbegin(), s.rend()), turned_by(by.rbegin(), by.rend());
  auto out = split_on(turned, turned_by, most);
  for (auto& piece : out) {
    const auto from_end = static_cast<std::size_t>(piece.data() - turned.data());
    piece = s.substr(s.size() - from_end - piece.size(), piece.size());
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends) {
  std::vector<std::string_view> out;
  std::size_t start = 0, at = 0;
  while (at < s.size()) {
    int n;
    const char32_t c = decode_at(s, at, &n);
    const std::size_t here = at;
    at += static_cast<std::size_t>(n);
    const bool end =
        (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!end) continue;
    if (c == '\r' && at < s.size() && s[at] == '\n') ++at;
    out.push_back(s.substr(start, (keep_ends ? at : here) - start));
    start = at;
  }
  if (start < s.size()) out.push_back(s.substr(start));
  return out;
}

}  // namespace nibble::chat
