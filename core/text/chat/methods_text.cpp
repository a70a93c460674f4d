// methods_text.cpp: the methods of strings.
#include <algorithm>

#include "core/text/chat/builtins.h"
#include "core/text/chat/py_text.h"
#include "core/text/chat/run.h"

namespace nibble::chat {
namespace {

const std::string& self_text(const Args& a) {
  return text_of(a.self);
}
Value like(Run& run, const Args& a, std::string s) {
  return run.text_like(a.self, std::move(s));
}

template <std::string (*F)(std::string_view)>
Value mapped(Run& run, Args& a) {
  run.room(self_text(a).size() * 8);
  run.step(self_text(a).size() / 8);
  return like(run, a, F(self_text(a)));
}

Value stripped(Run& run, Args& a, bool left, bool right) {
  std::u32string set;
  const bool all = !a.has(0) || a.at[0].is(Kind::none);
  if (!all) set = char_set(want_text(run, a.at[0], "the characters to strip"));
  std::string_view s = self_text(a);
  run.step(s.size() / 64);
  if (left) s = strip_left(s, all ? nullptr : &set);
  if (right) s = strip_right(s, all ? nullptr : &set);
  return like(run, a, std::string(s));
}
Value strip(Run& run, Args& a) {
  return stripped(run, a, true, true);
}
Value lstrip(Run& run, Args& a) {
  return stripped(run, a, true, false);
}
Value rstrip(Run& run, Args& a) {
  return stripped(run, a, false, true);
}

Value pieces(Run& run, const Args& a, const std::vector<std::string_view>& parts) {
  std::vector<Value> out;
  run.room(parts.size() * 160);
  out.reserve(parts.size());
  for (const auto p : parts) out.push_back(like(run, a, std::string(p)));
  return run.list(std::move(out));
}
Value divide(Run& run, Args& a, bool right) {
  const std::int64_t most = int_or(run, a, 1, -1);
  const std::string& s = self_text(a);
  run.room(s.size() * 16);
  run.step(s.size() / 16);
  if (!a.has(0) || a.at[0].is(Kind::none)) {
    return pieces(run, a, right ? split_space_right(s, most) : split_space(s, most));
  }
  const std::string& by = want_text(run, a.at[0], "the separator");
  if (by.empty()) run.fail("split: the separator is empty");
  return pieces(run, a, right ? split_on_right(s, by, most) : split_on(s, by, most));
}
Value split(Run& run, Args& a) {
  return divide(run, a, false);
}
Value rsplit(Run& run, Args& a) {
  return divide(run, a, true);
}
Value splitlines(Run& run, Args& a) {
  run.room(self_text(a).size() * 16);
  return pieces(run, a, split_lines(self_text(a), bool_or(a, 0, false)));
}

// The part of the text that start and end (code points, as in a slice) leave.
struct Window {
  std::size_t from, to;  // bytes
  std::int64_t first;    // code points before it
  bool empty;            // start lies behind end or the text
};
Window window(Run& run, const Args& a) {
  const Str& s = str_of(a.self);
  const auto size = static_cast<std::int64_t>(s.points);
  const auto bound = [&](std::size_t k, std::int64_t otherwise) {
    if (!a.has(k) || a.at[k].is(Kind::none)) return otherwise;
    const std::int64_t v = want_integer(run, a.at[k], "a position");
    return v < 0 ? std::max<std::int64_t>(0, v < -size ? 0 : v + size) : v;
  };
  run.step(s.text.size() / 64);
  const std::int64_t first = bound(1, 0), last = std::min(bound(2, size), size);
  if (first > size || first > last) return {0, 0, 0, true};
  return {offset_of(s.text, static_cast<std::size_t>(first)),
          offset_of(s.text, static_cast<std::size_t>(last)), first, false};
}
std::int64_t find_from(Run& run, Args& a, bool right) {
  const std::string& what = want_text(run, a.at[0], "what to find");
  const Window w = window(run, a);
  if (w.empty) return -1;
  const std::string_view s = std::string_view(self_text(a)).substr(w.from, w.to - w.from);
  const auto at = right ? rfind_in(s, what) : find_in(s, what);
  if (at == std::string_view::npos) return -1;
  return w.first + static_cast<std::int64_t>(count_points(s.substr(0, at)));
}
Value find(Run& run, Args& a) {
  return Value::integer(find_from(run, a, false));
}
Value rfind(Run& run, Args& a) {
  return Value::integer(find_from(run, a, true));
}
Value index(Run& run, Args& a) {
  const std::int64_t at = find_from(run, a, false);
  if (at < 0) run.fail("index: substring not found");
  return Value::integer(at);
}
Value rindex(Run& run, Args& a) {
  const std::int64_t at = find_from(run, a, true);
  if (at < 0) run.fail("rindex: substring not found");
  return Value::integer(at);
}
Value count(Run& run, Args& a) {
  const std::string& what = want_text(run, a.at[0], "what to count");
  const Window w = window(run, a);
  if (w.empty) return Value::integer(0);
  const std::string_view s = std::string_view(self_text(a)).substr(w.from, w.to - w.from);
  if (what.empty()) return Value::integer(static_cast<std::int64_t>(count_points(s)) + 1);
  std::int64_t n = 0;
  for (std::size_t at = 0; (at = find_in(s, what, at)) != std::string_view::npos; at += what.size())
    ++n;
  return Value::integer(n);
}

Value affix(Run& run, Args& a, bool start) {
  const Window w = window(run, a);
  const std::string_view s = std::string_view(self_text(a)).substr(w.from, w.to - w.from);
  const auto holds = [&](const Value& v) {
    const std::string& t = want_text(run, v, "what a text starts or ends with");
    return !w.empty && (start ? s.starts_with(t) : s.ends_with(t));
  };
  if (!a.at[0].is(Kind::tuple)) return Value::boolean(holds(a.at[0]));
  for (const Value& v : seq_of(a.at[0]).items) {
    run.step();
    if (holds(v)) return Value::boolean(true);
  }
  return Value::boolean(false);
}
Value startswith(Run& run, Args& a) {
  return affix(run, a, true);
}
Value endswith(Run& run, Args& a) {
  return affix(run, a, false);
}

Value replace(Run& run, Args& a) {
  const std::string& old = want_text(run, a.at[0], "what to replace");
  std::string fresh = want_text(run, a.at[1], "the replacement");
  if (is_markup(a.self) && !is_markup(a.at[1])) fresh = escape_html(run, fresh);
  return like(run, a, replace_text(run, self_text(a), old, fresh, int_or(run, a, 2, -1)));
}

Value join(Run& run, Args& a) {
  TextBuilder out(run);
  bool first = true;
  for (const Value& v : items_of(run, a.at[0])) {
    if (!first) out.add(self_text(a));
    first = false;
    if (!is_markup(a.self)) want_text(run, v, "an item to join");
    out.add(is_markup(a.self) ? text_of(escape(run, v)) : text_of(v));
  }
  return like(run, a, out.take());
}

template <bool (*Each)(char32_t)>
Value every(Run& run, Args& a) {
  const std::string& s = self_text(a);
  run.step(s.size() / 16);
  for (std::size_t at = 0; at < s.size();) {
    int n;
    if (!Each(decode_at(s, at, &n))) return Value::boolean(false);
    at += static_cast<std::size_t>(n);
  }
  return Value::boolean(!s.empty());
}
bool is_alnum(char32_t c) {
  return is_alpha(c) || is_numeric(c) || is_digit(c);
}
Value isprintable(Run& run, Args& a) {
  return self_text(a).empty() ? Value::boolean(true) : every<is_printable>(run, a);
}
Value isascii(Run&, Args& a) {
  return Value::boolean(str_of(a.self).points == self_text(a).size());
}
Value isidentifier(Run& run, Args& a) {
  run.step(self_text(a).size() / 16);
  return Value::boolean(is_identifier(self_text(a)));
}
Value one_case(Run& run, Args& a, bool upper) {
  const std::string& s = self_text(a);
  run.step(s.size() / 16);
  bool cased = false;
  for (std::size_t at = 0; at < s.size();) {
    int n;
    const char32_t c = decode_at(s, at, &n);
    if (is_title(c) || (upper ? is_lower(c) : is_upper(c))) return Value::boolean(false);
    cased |= upper ? is_upper(c) : is_lower(c);
    at += static_cast<std::size_t>(n);
  }
  return Value::boolean(cased);
}
Value islower(Run& run, Args& a) {
  return one_case(run, a, false);
}
Value isupper(Run& run, Args& a) {
  return one_case(run, a, true);
}
Value istitle(Run& run, Args& a) {
  const std::string& s = self_text(a);
  run.step(s.size() / 16);
  bool cased = false, before = false;
  for (std::size_t at = 0; at < s.size();) {
    int n;
    const char32_t c = decode_at(s, at, &n);
    const bool big = is_upper(c) || is_title(c);
    if ((big && before) || (is_lower(c) && !before)) return Value::boolean(false);
    before = big || is_lower(c);
    cased |= before;
    at += static_cast<std::size_t>(n);
  }
  return Value::boolean(cased);
}

Value cut(Run& run, Args& a, bool right) {
  const std::string& by = want_text(run, a.at[0], "the separator");
  if (by.empty()) run.fail("partition: the separator is empty");
  const std::string& s = self_text(a);
  const auto at = right ? rfind_in(s, by) : find_in(s, by);
  if (at == std::string::npos) {
    const Value none = like(run, a, "");
    return run.tuple(right ? std::vector<Value>{none, none, like(run, a, s)}
                           : std::vector<Value>{like(run, a, s), none, none});
  }
  return run.tuple(
      {like(run, a, s.substr(0, at)), like(run, a, by), like(run, a, s.substr(at + by.size()))});
}
Value partition(Run& run, Args& a) {
  return cut(run, a, false);
}
Value rpartition(Run& run, Args& a) {
  return cut(run, a, true);
}

Value removeprefix(Run& run, Args& a) {
  const std::string& p = want_text(run, a.at[0], "the prefix");
  const std::string& s = self_text(a);
  return like(run, a, s.starts_with(p) ? s.substr(p.size()) : s);
}
Value removesuffix(Run& run, Args& a) {
  const std::string& p = want_text(run, a.at[0], "the suffix");
  const std::string& s = self_text(a);
  return like(run, a, s.ends_with(p) ? s.substr(0, s.size() - p.size()) : s);
}

Value format(Run& run, Args& a) {
  return like(run, a, format_braces(run, a.self, a.rest, a.named));
}
Value format_map(Run& run, Args& a) {
  NamedValues named;
  if (!a.at[0].is(Kind::dict)) run.fail("format_map needs a dict");
  for (const auto& [k, v] : dict_of(a.at[0]).items) {
    if (k.is_string()) named.emplace_back(text_of(k), v);
  }
  return like(run, a, format_braces(run, a.self, {}, named));
}

constexpr Builtin kMethods[] = {
    {"capitalize", mapped<to_capital>},
    {"casefold", mapped<fold_case>},
    {"count", count, {"sub", "start", "end"}, 1},
    {"endswith", endswith, {"suffix", "start", "end"}, 1},
    {"find", find, {"sub", "start", "end"}, 1},
    {"format", format, {}, 0, true, true},
    {"format_map", format_map, {"mapping"}, 1},
    {"index", index, {"sub", "start", "end"}, 1},
    {"isalnum", every<is_alnum>},
    {"isalpha", every<is_alpha>},
    {"isascii", isascii},
    {"isdecimal", every<is_decimal>},
    {"isdigit", every<is_digit>},
    {"isidentifier", isidentifier},
    {"islower", islower},
    {"isnumeric", every<is_numeric>},
    {"isprintable", isprintable},
    {"isspace", every<is_space>},
    {"istitle", istitle},
    {"isupper", isupper},
    {"join", join, {"iterable"}, 1},
    {"lower", mapped<to_lower>},
    {"lstrip", lstrip, {"chars"}},
    {"partition", partition, {"sep"}, 1},
    {"removeprefix", removeprefix, {"prefix"}, 1},
    {"removesuffix", removesuffix, {"suffix"}, 1},
    {"replace", replace, {"old", "new", "count"}, 2},
    {"rfind", rfind, {"sub", "start", "end"}, 1},
    {"rindex", rindex, {"sub", "start", "end"}, 1},
    {"rpartition", rpartition, {"sep"}, 1},
    {"rsplit", rsplit, {"sep", "maxsplit"}},
    {"rstrip", rstrip, {"chars"}},
    {"split", split, {"sep", "maxsplit"}},
    {"splitlines", splitlines, {"keepends"}},
    {"startswith", startswith, {"prefix", "start", "end"}, 1},
    {"strip", strip, {"chars"}},
    {"swapcase", mapped<swap_case>},
    {"title", mapped<to_title>},
    {"upper", mapped<to_upper>},
};

}  // namespace

std::string replace_text(Run& run, std::string_view s, std::string_view old, std::string_view fresh,
                         std::int64_t most) {
  TextBuilder out(run);
  run.step(s.size() / 64);
  if (old.empty()) {
    std::int64_t done = 0;
    for (std::size_t at = 0; at <= s.size();) {
      if (most >= 0 && done >= most) {
        out.add(s.substr(at));
        break;
      }
      out.add(fresh);
      ++done;
      int n = 1;
      if (at < s.size()) decode_at(s, at, &n);
      out.add(s.substr(std::min(at, s.size()), static_cast<std::size_t>(n)));
      at += static_cast<std::size_t>(n);
    }
    return out.take();
  }
  for (std::int64_t done = 0; most < 0 || done < most; ++done) {
    const auto at = find_in(s, old);
    if (at == std::string_view::npos) break;
    out.add(s.substr(0, at));
    out.add(fresh);
    s.remove_prefix(at + old.size());
  }
  out.add(s);
  return out.take();
}

const Builtin* find_text_method(std::string_view name) {
  const Builtin* def = find_in_table(kMethods, name);
  return def ? def : find_pad_method(name);
}

}  // namespace nibble::chat
