// methods_pad.cpp: the methods of strings that fill with blanks or zeros.
#include "core/text/chat/builtins.h"
#include "core/text/chat/format_spec.h"
#include "core/text/chat/py_text.h"
#include "core/text/chat/run.h"

namespace nibble::chat {

std::string centered(Run& run, std::string_view s, FormatSpec spec) {
  // str.center puts the odd blank on the left when the width is odd, unlike format's ^.
  const auto size = static_cast<std::int64_t>(count_points(s));
  if (spec.width <= size) return std::string(s);
  const std::int64_t missing = spec.width - size;
  const std::int64_t left = missing / 2 + (missing & spec.width & 1);
  TextBuilder out(run);
  out.fill(spec.fill, left);
  out.add(s);
  out.fill(spec.fill, missing - left);
  return out.take();
}

namespace {

const std::string& self_text(const Args& a) {
  return text_of(a.self);
}
Value like(Run& run, const Args& a, std::string s) {
  return run.text_like(a.self, std::move(s));
}

Value padded(Run& run, Args& a, char align) {
  FormatSpec spec;
  spec.width = want_integer(run, a.at[0], "the width");
  spec.align = align;
  if (a.has(1)) {
    spec.fill = want_text(run, a.at[1], "the fill character");
    if (is_markup(a.self)) spec.fill = escape_html(run, spec.fill);
    if (count_points(spec.fill) != 1) run.fail("the fill character must be one character");
  }
  if (align == '^') return like(run, a, centered(run, self_text(a), spec));
  return like(run, a, pad(run, self_text(a), spec, align));
}
Value center(Run& run, Args& a) {
  return padded(run, a, '^');
}
Value ljust(Run& run, Args& a) {
  return padded(run, a, '<');
}
Value rjust(Run& run, Args& a) {
  return padded(run, a, '>');
}
Value zfill(Run& run, Args& a) {
  FormatSpec spec;
  std::string_view s = self_text(a);
  const bool sign = !s.empty() && (s[0] == '-' || s[0] == '+');
  const std::int64_t width = want_integer(run, a.at[0], "the width");
  spec.width = sign && width > 0 ? width - 1 : width;
  spec.fill.assign(1, '0');
  std::string out = sign ? std::string(1, s[0]) : "";
  out += pad(run, sign ? s.substr(1) : s, spec, '>');
  return like(run, a, std::move(out));
}

Value expandtabs(Run& run, Args& a) {
  const std::int64_t size = int_or(run, a, 0, 8);
  TextBuilder out(run);
  std::int64_t column = 0;
  for (const char c : self_text(a)) {
    if (c == '\t') {
      const std::int64_t fill = size > 0 ? size - column % size : 0;
      out.fill(" ", fill);
      column += fill;
    } else {
      out.add(c);
      column =
          c == '\n' || c == '\r' ? 0 : column + ((static_cast<unsigned char>(c) & 0xC0) != 0x80);
    }
  }
  return like(run, a, out.take());
}

constexpr Builtin kMethods[] = {
    {"center", center, {"width", "fillchar"}, 1},
    {"expandtabs", expandtabs, {"tabsize"}},
    {"ljust", ljust, {"width", "fillchar"}, 1},
    {"rjust", rjust, {"width", "fillchar"}, 1},
    {"zfill", zfill, {"width"}, 1},
};

}  // namespace

const Builtin* find_pad_method(std::string_view name) {
  return find_in_table(kMethods, name);
}

}  // namespace nibble::chat
