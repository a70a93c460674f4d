// filters_layout.cpp: wordwrap, in the manner of Python's textwrap, and pprint.
#include <algorithm>

#include "core/text/chat/builtins.h"
#include "core/text/chat/py_text.h"
#include "core/text/chat/run.h"
#include "core/text/unicode.h"

namespace nibble::chat {
namespace {

using Text = std::u32string_view;

struct WrapStyle {
  std::size_t width = 79;
  bool break_words = true, break_hyphens = true;
};

bool blank(char32_t c) {
  return c == ' ' || (c >= 9 && c <= 13);
}
bool letter(char32_t c) {
  return is_word(c) && !is_decimal(c);
}
bool before_dash(char32_t c) {
  return is_word(c) || c == '!' || c == '"' || c == '\'' || c == '&' || c == '.' || c == ',' ||
         c == '?';
}

// Words, runs of blanks, and the places inside words where a line may end: after a hyphen between
// letters and around a dash of two or more hyphens.
class Chunks {
 public:
  explicit Chunks(Text s) : s_(s) {}

  std::vector<Text> split(bool at_hyphens) const {
    std::vector<Text> out;
    for (std::size_t at = 0; at < s_.size();) {
      std::size_t to = at + 1;
      if (blank(s_[at])) {
        while (to < s_.size() && blank(s_[to])) ++to;
      } else if (!at_hyphens) {
        while (to < s_.size() && !blank(s_[to])) ++to;
      } else if (const std::size_t dash = dash_at(at); dash && at > 0 && before_dash(s_[at - 1])) {
        to = at + dash;
      } else {
        to = word_end(at);
      }
      out.push_back(s_.substr(at, to - at));
      at = to;
    }
    return out;
  }

 private:
  char32_t get(std::size_t i) const { return i < s_.size() ? s_[i] : U'\0'; }

  // The length of a dash that starts here and has a word behind it, or 0.
  std::size_t dash_at(std::size_t at) const {
    std::size_t n = 0;
    while (get(at + n) == '-') ++n;
    return n >= 2 && is_word(get(at + n)) ? n : 0;
  }

  std::size_t word_end(std::size_t at) const {
    for (std::size_t i = at + 1;; ++i) {
      if (i >= s_.size() || blank(s_[i])) return i;
      if (s_[i] != '-') continue;
      const bool two = i >= 2 && letter(s_[i - 1]) && letter(s_[i - 2]);
      const bool three = i >= 3 && letter(s_[i - 3]) && s_[i - 2] == '-' && before_dash(s_[i - 1]);
      const bool after =
          letter(get(i + 1)) && (letter(get(i + 2)) || (get(i + 2) == '-' && letter(get(i + 3))));
      if ((two || three) && after) return i + 1;
      // A dash is looked at from its first hyphen, so that a long one costs its length once.
      if (s_[i - 1] != '-' && before_dash(s_[i - 1]) && dash_at(i)) return i;
    }
  }

  Text s_;
};

bool is_blank(Text t) {
  return std::all_of(t.begin(), t.end(), is_space);
}

// How much of a word that fits no line goes on this one.
std::size_t cut_word(Text word, std::size_t room, const WrapStyle& style) {
  if (!style.break_hyphens || word.size() <= room) return room;
  const auto hyphen = room == 0 ? Text::npos : word.substr(0, room).rfind(U'-');
  const bool real = hyphen != Text::npos && hyphen > 0 &&
                    word.substr(0, hyphen).find_first_not_of(U'-') != Text::npos;
  return real ? hyphen + 1 : room;
}

std::vector<std::u32string> wrap(Run& run, Text s, const WrapStyle& style) {
  std::vector<Text> chunks = Chunks(s).split(style.break_hyphens);
  std::vector<std::u32string> lines;
  for (std::size_t next = 0; next < chunks.size();) {
    run.step();
    std::vector<Text> line;
    std::size_t length = 0;
    if (is_blank(chunks[next]) && !lines.empty()) ++next;
    while (next < chunks.size() && length + chunks[next].size() <= style.width) {
      length += chunks[next].size();
      line.push_back(chunks[next++]);
    }
    if (next < chunks.size() && chunks[next].size() > style.width) {
      if (style.break_words) {
        const std::size_t n = cut_word(chunks[next], style.width - length, style);
        line.push_back(chunks[next].substr(0, n));
        chunks[next].remove_prefix(n);
      } else if (line.empty()) {
        line.push_back(chunks[next++]);
      }
    }
    if (!line.empty() && is_blank(line.back())) line.pop_back();
    if (line.empty()) continue;
    std::u32string text;
    for (const Text t : line) text += t;
    lines.push_back(std::move(text));
  }
  return lines;
}

Value wordwrap(Run& run, Args& a) {
  WrapStyle style;
  const std::int64_t width = int_or(run, a, 0, 79);
  if (width < 1) run.fail("wordwrap: expected a width above 0, found " + std::to_string(width));
  style.width = static_cast<std::size_t>(width);
  style.break_words = bool_or(a, 1, true);
  const std::string newline = a.has(2) && !a.at[2].is(Kind::none) ? to_text(run, a.at[2]) : "\n";
  style.break_hyphens = bool_or(a, 3, true);
  const std::string s = to_text(run, a.self);
  run.room(s.size() * 48);
  run.step(s.size() / 4);
  TextBuilder out(run);
  bool first = true;
  for (const auto line : split_lines(s, false)) {
    std::u32string points;
    for (std::size_t at = 0; at < line.size();) {
      int n;
      points += decode_at(line, at, &n);
      at += static_cast<std::size_t>(n);
    }
    if (!first) out.add(newline);
    first = false;
    bool start = true;
    for (const auto& part : wrap(run, points, style)) {
      if (!start) out.add(newline);
      start = false;
      std::string bytes;
      for (const char32_t c : part) append_utf8(bytes, c);
      out.add(bytes);
    }
  }
  return run.text(out.take());
}

// Python's pprint, but for strings longer than a line: dicts sorted by key, one item to a line
// where a value does not fit in 80 columns.
class Pretty {
 public:
  explicit Pretty(Run& run) : run_(run), out_(run) {}

  std::string go(const Value& v) {
    write(v, 0, 0);
    return out_.take();
  }

 private:
  // A dict's items in the order of their keys, where these can be ordered.
  std::vector<std::pair<Value, Value>> sorted(const Dict& d) {
    auto items = d.items;
    const bool text =
        std::all_of(items.begin(), items.end(), [](const auto& i) { return i.first.is_string(); });
    const bool number =
        std::all_of(items.begin(), items.end(), [](const auto& i) { return i.first.is_number(); });
    if (text || number) {
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto& a, const auto& b) { return less(run_, a.first, b.first); });
    }
    return items;
  }

  Value ordered(const Value& v) {
    run_.step();
    const Run::Deeper deeper(run_);
    if (v.is(Kind::dict)) {
      auto d = std::make_shared<Dict>();
      for (const auto& [k, x] : sorted(dict_of(v))) d->set(k, ordered(x));
      return run_.dict(std::move(d));
    }
    if (!is_seq(v)) return v;
    std::vector<Value> items;
    for (const Value& x : seq_of(v).items) items.push_back(ordered(x));
    return run_.sequence(v.kind, std::move(items));
  }

  void write(const Value& v, std::size_t column, std::size_t after) {
    run_.step();
    const Run::Deeper deeper(run_);
    const std::string line = to_repr(run_, ordered(v));
    const bool container =
        (v.is(Kind::dict) && !dict_of(v).items.empty()) || (is_seq(v) && !seq_of(v).items.empty());
    if (!container || count_points(line) + column + after <= 80) {
      out_.add(line);
      return;
    }
    const auto next_line = [&] {
      out_.add(",\n");
      out_.fill(" ", static_cast<std::int64_t>(column + 1));
    };
    if (v.is(Kind::dict)) {
      out_.add('{');
      const auto items = sorted(dict_of(v));
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (i > 0) next_line();
        const std::string key = to_repr(run_, items[i].first) + ": ";
        out_.add(key);
        write(items[i].second, column + 1 + count_points(key),
              i + 1 == items.size() ? after + 1 : 1);
      }
      out_.add('}');
      return;
    }
    const bool list = v.is(Kind::list);
    const auto& items = seq_of(v).items;
    out_.add(list ? '[' : '(');
    const std::size_t close = !list && items.size() == 1 ? 2 : 1;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) next_line();
      write(items[i], column + 1, i + 1 == items.size() ? after + close : 1);
    }
    out_.add(list ? "]" : close == 2 ? ",)" : ")");
  }

  Run& run_;
  TextBuilder out_;
};

Value pprint(Run& run, Args& a) {
  return run.text(Pretty(run).go(a.self));
}

constexpr Builtin kFilters[] = {
    {"pprint", pprint},
    {"wordwrap", wordwrap, {"width", "break_long_words", "wrapstring", "break_on_hyphens"}},
};

}  // namespace

const Builtin* find_layout_filter(std::string_view name) {
  return find_in_table(kFilters, name);
}

}  // namespace nibble::chat
