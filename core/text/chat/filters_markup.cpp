// filters_markup.cpp: safe, escape and the other filters that know HTML.
#include <algorithm>
#include <charconv>

#include "core/text/chat/builtins.h"
#include "core/text/chat/py_text.h"
#include "core/text/chat/run.h"
#include "core/text/unicode.h"

namespace nibble::chat {
namespace {

Value safe(Run& run, Args& a) {
  return run.text(to_text(run, a.self), true);
}
Value escape_filter(Run& run, Args& a) {
  return escape(run, a.self);
}
Value forceescape(Run& run, Args& a) {
  return run.text(escape_html(run, to_text(run, a.self)), true);
}
Value striptags(Run& run, Args& a) {
  return run.text(strip_tags(run, to_text(run, a.self)));
}

Value xmlattr(Run& run, Args& a) {
  if (!a.self.is(Kind::dict))
    run.fail(std::string("xmlattr needs a dict, found ") + type_name(a.self));
  TextBuilder out(run);
  for (const auto& [k, v] : dict_of(a.self).items) {
    if (v.is(Kind::none) || v.is_undefined()) continue;
    const std::string key = to_text(run, k);
    for (std::size_t at = 0; at < key.size();) {
      int n;
      const char32_t c = decode_at(key, at, &n);
      if (is_space(c) || c == '/' || c == '>' || c == '=') {
        run.fail("xmlattr: invalid character in the attribute name " + to_repr(run, k));
      }
      at += static_cast<std::size_t>(n);
    }
    if (out.size() > 0 || bool_or(a, 0, true)) out.add(' ');
    out.add(text_of(escape(run, k)));
    out.add("=\"");
    out.add(text_of(escape(run, v)));
    out.add('"');
  }
  return run.text(out.take());
}

Value unescape_method(Run& run, Args& a);
Value striptags_method(Run& run, Args& a) {
  return striptags(run, a);
}

constexpr Builtin kFilters[] = {
    {"e", escape_filter}, {"escape", escape_filter}, {"forceescape", forceescape},
    {"safe", safe},       {"striptags", striptags},  {"xmlattr", xmlattr, {"autospace"}},
};
constexpr Builtin kMethods[] = {
    {"striptags", striptags_method},
    {"unescape", unescape_method},
};

struct Entity {
  std::string_view name, text;
};
constexpr Entity kEntities[] = {  // those that text really holds; others stay as they are
    {"amp", "&"},         {"lt", "<"},         {"gt", ">"},          {"quot", "\""},
    {"apos", "'"},        {"nbsp", "\u00a0"},  {"copy", "\u00a9"},   {"reg", "\u00ae"},
    {"hellip", "\u2026"}, {"mdash", "\u2014"}, {"ndash", "\u2013"},  {"lsquo", "\u2018"},
    {"rsquo", "\u2019"},  {"ldquo", "\u201c"}, {"rdquo", "\u201d"},  {"laquo", "\u00ab"},
    {"raquo", "\u00bb"},  {"euro", "\u20ac"},  {"middot", "\u00b7"}, {"times", "\u00d7"},
    {"deg", "\u00b0"}};

bool add_entity(TextBuilder& out, std::string_view name) {
  if (name.starts_with("#")) {
    const bool hex = name.size() > 1 && (name[1] == 'x' || name[1] == 'X');
    name.remove_prefix(hex ? 2 : 1);
    std::uint32_t point = 0;
    const auto r = std::from_chars(name.data(), name.data() + name.size(), point, hex ? 16 : 10);
    if (name.empty() || r.ec != std::errc() || r.ptr != name.data() + name.size()) return false;
    std::string one;
    append_utf8(one, point == 0 ? 0xFFFD : point);
    out.add(one);
    return true;
  }
  const auto it = std::find_if(std::begin(kEntities), std::end(kEntities),
                               [&](const Entity& e) { return e.name == name; });
  if (it == std::end(kEntities)) return false;
  out.add(it->text);
  return true;
}

std::string unescape(Run& run, std::string_view s) {
  constexpr std::size_t kLongest = 32;
  TextBuilder out(run);
  while (!s.empty()) {
    const auto at = std::min(s.find('&'), s.size());
    out.add(s.substr(0, at));
    s.remove_prefix(at);
    if (s.empty()) break;
    const auto end = s.substr(0, kLongest).find(';');
    if (end != std::string_view::npos && add_entity(out, s.substr(1, end - 1))) {
      s.remove_prefix(end + 1);
    } else {
      out.add('&');
      s.remove_prefix(1);
    }
  }
  return out.take();
}

Value unescape_method(Run& run, Args& a) {
  return run.text(unescape(run, text_of(a.self)));
}

// What is left when everything from `open` to the next `close` goes, as often as there is one.
std::string without(std::string_view s, std::string_view open, std::string_view close) {
  std::string out;
  for (;;) {
    const auto from = s.find(open);
    const auto to = from == std::string_view::npos ? from : s.find(close, from);
    if (to == std::string_view::npos) return out + std::string(s);
    out += s.substr(0, from);
    s.remove_prefix(to + close.size());
  }
}

}  // namespace

std::string strip_tags(Run& run, std::string_view s) {
  run.room(s.size() * 16);
  run.step(s.size() / 16);
  const std::string plain = without(without(s, "<!--", "-->"), "<", ">");
  std::string joined;
  for (const auto word : split_space(plain, -1)) {
    if (!joined.empty()) joined += ' ';
    joined += word;
  }
  return unescape(run, joined);
}

const Builtin* find_markup_filter(std::string_view name) {
  return find_in_table(kFilters, name);
}
const Builtin* find_markup_method(std::string_view name) {
  return find_in_table(kMethods, name);
}

}  // namespace nibble::chat
