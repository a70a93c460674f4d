#include "core/text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>

#include "core/base/quote.h"
#include "core/text/unicode.h"
#include "nibble/error.h"

namespace nibble {
namespace {

constexpr std::size_t kMostForms = 16;

struct FormRule {
  const char* name;
  std::int32_t stable_below;  // code points below are their own normal form and never compose back
  bool compose, compat;
};

// In the order of Normalizer::Form.
constexpr FormRule kRules[] = {{"NFC", 0x300, true, false},
                               {"NFD", 0xC0, false, false},
                               {"NFKC", 0xA0, true, true},
                               {"NFKD", 0xA0, false, true}};

int combining_class(std::int32_t c) {
  return utf8proc_get_property(c)->combining_class;
}

// utf8proc's own decompose sorts marks by exchanging neighbours, quadratic in a long run.
void sort_marks(std::vector<std::int32_t>& text) {
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && combining_class(text[end]) != 0) ++end;
    std::stable_sort(
        text.begin() + static_cast<std::ptrdiff_t>(i),
        text.begin() + static_cast<std::ptrdiff_t>(end),
        [](std::int32_t a, std::int32_t b) { return combining_class(a) < combining_class(b); });
    i = end + 1;
  }
}

void append_normalized(std::string& out, std::string_view text, const FormRule& rule) {
  const auto decompose =
      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | (rule.compat ? UTF8PROC_COMPAT : 0));
  std::vector<std::int32_t> points;
  points.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    std::int32_t c = 0, parts[32];
    i += static_cast<std::size_t>(
        utf8proc_iterate(reinterpret_cast<const std::uint8_t*>(text.data()) + i,
                         static_cast<utf8proc_ssize_t>(text.size() - i), &c));
    int boundary = 0;
    const auto n = utf8proc_decompose_char(c, parts, 32, decompose, &boundary);
    points.insert(points.end(), parts, parts + n);  // no character has more than 18 parts
  }
  sort_marks(points);
  auto n = static_cast<utf8proc_ssize_t>(points.size());
  if (rule.compose) {
    const auto how = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    n = utf8proc_normalize_utf32(points.data(), n, how);
  }
  for (utf8proc_ssize_t i = 0; i < n; ++i) {
    append_utf8(out, static_cast<char32_t>(points[static_cast<std::size_t>(i)]));
  }
}

std::int32_t code_point_at(std::string_view text, std::size_t i, std::size_t& length) {
  std::int32_t c = 0;
  length = static_cast<std::size_t>(
      utf8proc_iterate(reinterpret_cast<const std::uint8_t*>(text.data()) + i,
                       static_cast<utf8proc_ssize_t>(text.size() - i), &c));
  return c;
}

}  // namespace

std::string normalized(std::string_view text, Normalizer::Form form) {
  const FormRule& rule = kRules[static_cast<std::size_t>(form)];
  std::string out;
  out.reserve(text.size());
  std::size_t i = 0, last = 0, length = 0;  // last: where the newest stable character starts
  const auto stable_at = [&](std::size_t at) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      length = 1;
      return true;
    }
    return code_point_at(text, at, length) < rule.stable_below;
  };
  while (i < text.size()) {
    const std::size_t begin = last = i;
    for (; i < text.size() && stable_at(i); i += length) last = i;
    if (i == text.size()) {
      out.append(text.substr(begin));
      break;
    }
    // The last stable character may compose with what follows.
    out.append(text.substr(begin, last - begin));
    while (i < text.size() && !stable_at(i)) i += length;
    append_normalized(out, text.substr(last, i - last), rule);
  }
  return out;
}

Normalizer::Normalizer(const JsonView& root) {
  if (root.has("normalizer")) read(root.object("normalizer"));
}

void Normalizer::read(const JsonView& value) {
  const std::string type = value.string("type");
  if (type == "Sequence") {
    const auto list = value.array("normalizers");
    for (std::size_t i = 0; i < list.size(); ++i) {
      read(JsonView(list[i], value.path() + ".normalizers[" + std::to_string(i) + "]"));
    }
    return;
  }
  for (std::size_t i = 0; i < std::size(kRules); ++i) {
    if (type != kRules[i].name) continue;
    if (forms_.size() == kMostForms) {
      throw Error(ErrorCode::unsupported, value.path() + ": more than 16 normalizers in a row");
    }
    forms_.push_back(static_cast<Form>(i));
    return;
  }
  throw Error(ErrorCode::unsupported, value.path() + ": unknown normalizer " + in_quotes(type) +
                                          ", expected NFC, NFD, NFKC, NFKD or Sequence");
}

std::string Normalizer::apply(std::string_view text) const {
  std::string result(text);
  for (const Form form : forms_) result = normalized(result, form);
  return result;
}

}  // namespace nibble
