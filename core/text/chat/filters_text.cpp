// filters_text.cpp: filters on text.
#include <algorithm>

#include "core/text/chat/builtins.h"
#include "core/text/chat/format_spec.h"
#include "core/text/chat/py_text.h"
#include "core/text/chat/run.h"

namespace nibble::chat {
namespace {

// The value as text; markup stays markup.
Value soft(Run& run, const Value& v) {
  return v.is_string() ? v : run.text(to_text(run, v));
}

// A filter that is a method of the value's text.
Value by_method(Run& run, Args& a, const char* name) {
  CallArgs args;
  for (const Value& v : a.at) {
    if (!v.is_absent()) args.positional.push_back(v);
  }
  return run.call_builtin(*find_text_method(name), soft(run, a.self), std::move(args));
}
Value upper(Run& run, Args& a) {
  return by_method(run, a, "upper");
}
Value lower(Run& run, Args& a) {
  return by_method(run, a, "lower");
}
Value capitalize(Run& run, Args& a) {
  return by_method(run, a, "capitalize");
}
Value trim(Run& run, Args& a) {
  return by_method(run, a, "strip");
}
Value center(Run& run, Args& a) {
  if (!a.has(0)) a.at[0] = Value::integer(80);
  return by_method(run, a, "center");
}
Value string(Run& run, Args& a) {
  return soft(run, a.self);
}

Value title(Run& run, Args& a) {
  const Value v = soft(run, a.self);
  const std::string& s = text_of(v);
  run.room(s.size() * 8);
  const auto parts = [](char32_t c) {
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_space(c);
  };
  std::string out;
  for (std::size_t at = 0; at < s.size();) {
    int n;
    const bool separator = parts(decode_at(s, at, &n));
    const std::size_t first = at + static_cast<std::size_t>(n);
    std::size_t to = first;
    while (to < s.size() && parts(decode_at(s, to, &n)) == separator)
      to += static_cast<std::size_t>(n);
    out += to_upper(std::string_view(s).substr(at, first - at));
    out += to_lower(std::string_view(s).substr(first, to - first));
    at = to;
  }
  return run.text(std::move(out));
}

Value replace(Run& run, Args& a) {
  const std::string s = to_text(run, a.self);
  const std::int64_t most = a.has(2) && !a.at[2].is(Kind::none) ? int_or(run, a, 2, -1) : -1;
  return run.text(replace_text(run, s, to_text(run, a.at[0]), to_text(run, a.at[1]), most));
}

Value format(Run& run, Args& a) {
  if (!a.rest.empty() && !a.named.empty()) run.fail("format takes values or keywords, not both");
  const Value text = soft(run, a.self);
  Value values;
  if (a.named.empty()) {
    values = run.tuple(std::move(a.rest));
  } else {
    auto d = std::make_shared<Dict>();
    for (auto& [k, v] : a.named) d->set(run.text(k), std::move(v));
    values = run.dict(std::move(d));
  }
  return run.text_like(text, format_percent(run, text, values));
}

Value indent(Run& run, Args& a) {
  std::string by;
  if (a.has(0) && a.at[0].is_string()) {
    by = text_of(a.at[0]);
  } else {
    TextBuilder fill(run);
    fill.fill(" ", int_or(run, a, 0, 4));
    by = fill.take();
  }
  const bool first = bool_or(a, 1, false), blank = bool_or(a, 2, false);
  const std::string s =
      want_text(run, a.self.is_undefined() ? run.text("") : a.self, "the text") + "\n";
  run.room(s.size() * 16);
  TextBuilder out(run);
  const auto lines = split_lines(s, false);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.add('\n');
    if (i == 0 ? first : blank || !lines[i].empty()) out.add(by);
    out.add(lines[i]);
  }
  return run.text_like(a.self, out.take());
}

Value truncate(Run& run, Args& a) {
  const std::int64_t length = int_or(run, a, 0, 255),
                     leeway = a.has(3) && !a.at[3].is(Kind::none) ? int_or(run, a, 3, 5) : 5;
  const bool kill = bool_or(a, 1, false);
  const std::string end = a.has(2) ? to_text(run, a.at[2]) : "...";
  const Value v = soft(run, a.self);
  const Str& s = str_of(v);
  const auto end_size = static_cast<std::int64_t>(count_points(end));
  if (length < end_size)
    run.fail("truncate: expected a length of at least " + std::to_string(end_size));
  if (leeway < 0) run.fail("truncate: expected a leeway of at least 0");
  if (static_cast<std::int64_t>(s.points) - length <= leeway) return v;
  std::string kept =
      s.text.substr(0, offset_of(s.text, static_cast<std::size_t>(length - end_size)));
  if (!kill) {
    const auto space = kept.rfind(' ');
    if (space != std::string::npos) kept.resize(space);
  }
  return run.text_like(v, kept + end);
}

Value wordcount(Run& run, Args& a) {
  const std::string s = to_text(run, a.self);
  run.step(s.size() / 16);
  std::int64_t n = 0;
  bool inside = false;
  for (std::size_t at = 0; at < s.size();) {
    int length;
    const bool word = is_word(decode_at(s, at, &length));
    n += word && !inside;
    inside = word;
    at += static_cast<std::size_t>(length);
  }
  return Value::integer(n);
}

Value urlencode(Run& run, Args& a) {
  const auto quote = [&](const Value& v, bool query) {
    static constexpr char kHex[] = "0123456789ABCDEF";
    TextBuilder out(run);
    for (const char c : to_text(run, v)) {
      const auto u = static_cast<unsigned char>(c);
      if (u < 0x80 && (is_alpha(u) || is_decimal(u) || c == '_' || c == '.' || c == '-' ||
                       c == '~' || (c == '/' && !query))) {
        out.add(c);
      } else if (c == ' ' && query) {
        out.add('+');
      } else {
        out.add('%');
        out.add(kHex[u >> 4]);
        out.add(kHex[u & 15]);
      }
    }
    return out.take();
  };
  if (a.self.is_string() || !iterable(a.self)) return run.text(quote(a.self, false));
  std::vector<Value> pairs;
  if (a.self.is(Kind::dict)) {
    for (const auto& [k, v] : dict_of(a.self).items) pairs.push_back(run.tuple({k, v}));
  } else {
    pairs = items_of(run, a.self);
  }
  TextBuilder out(run);
  for (const Value& pair : pairs) {
    const auto two = items_of(run, pair);
    if (two.size() != 2) run.fail("urlencode: expected pairs of a key and a value");
    if (out.size() > 0) out.add('&');
    out.add(quote(two[0], true));
    out.add('=');
    out.add(quote(two[1], true));
  }
  return run.text(out.take());
}

constexpr Builtin kFilters[] = {
    {"capitalize", capitalize},
    {"center", center, {"width"}},
    {"format", format, {}, 0, true, true},
    {"indent", indent, {"width", "first", "blank"}},
    {"lower", lower},
    {"replace", replace, {"old", "new", "count"}, 2},
    {"string", string},
    {"title", title},
    {"trim", trim, {"chars"}},
    {"truncate", truncate, {"length", "killwords", "end", "leeway"}},
    {"upper", upper},
    {"urlencode", urlencode},
    {"wordcount", wordcount},
};

}  // namespace

const Builtin* find_text_filter(std::string_view name) {
  return find_in_table(kFilters, name);
}

}  // namespace nibble::chat
