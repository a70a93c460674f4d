// format.cpp: 'text' % values and str.format.
#include <charconv>
#include <cmath>

#include "core/text/chat/format_spec.h"
#include "core/text/chat/py_text.h"
#include "core/text/unicode.h"

namespace nibble::chat {
namespace {

class Percent {
 public:
  Percent(Run& run, const Value& format, const Value& args)
      : run_(run), s_(text_of(format)), markup_(is_markup(format)), args_(args), out_(run) {}

  std::string go() {
    while (at_ < s_.size()) {
      const auto next = std::min(s_.find('%', at_), s_.size());
      out_.add(s_.substr(at_, next - at_));
      at_ = next;
      if (at_ < s_.size()) one();
    }
    if (args_.is(Kind::tuple)
            ? used_ < seq_of(args_).items.size()
            : !keyed_ && used_ == 0 && !args_.is(Kind::dict) && !is_sequence(args_)) {
      run_.fail("not all arguments of % were used in the format");
    }
    return out_.take();
  }

 private:
  static bool is_sequence(const Value& v) { return v.is(Kind::list) || v.is(Kind::range); }

  const Value& next() {
    if (args_.is(Kind::tuple)) {
      if (used_ >= seq_of(args_).items.size())
        run_.fail("not enough arguments for the format of %");
      return seq_of(args_).items[used_++];
    }
    if (used_++ > 0) run_.fail("not enough arguments for the format of %");
    return args_;
  }

  std::int64_t number(std::int64_t most) {
    if (at_ < s_.size() && s_[at_] == '*') {
      ++at_;
      const Value v = next();
      if (!v.is_whole() || v.whole() > most || v.whole() < -most)
        run_.fail("* needs an integer within bounds");
      return v.whole();
    }
    std::int64_t v = 0;
    for (; at_ < s_.size() && s_[at_] >= '0' && s_[at_] <= '9'; ++at_) {
      v = v * 10 + (s_[at_] - '0');
      if (v > most) run_.fail("a format with a width or precision above " + std::to_string(most));
    }
    return v;
  }

  void one() {
    ++at_;  // the percent sign
    FormatSpec spec;
    spec.align = '\0';
    bool left = false;
    Value keyed = Value::absent();
    if (at_ < s_.size() && s_[at_] == '(') {
      const auto close = s_.find(')', at_);
      if (close == std::string_view::npos) run_.fail("a key of % without its ')'");
      if (!args_.is(Kind::dict)) run_.fail("a format with keys needs a dict");
      const std::string key(s_.substr(at_ + 1, close - at_ - 1));
      const Value* v = dict_of(args_).find(std::string_view(key));
      if (!v) run_.fail("no value for the key '" + key + "'");
      keyed = *v;
      keyed_ = true;
      at_ = close + 1;
    }
    for (; at_ < s_.size(); ++at_) {
      const char c = s_[at_];
      if (c == '-') {
        left = true;
      } else if (c == '+') {
        spec.sign = '+';
      } else if (c == ' ') {
        if (spec.sign != '+') spec.sign = ' ';
      } else if (c == '#') {
        spec.alternate = true;
      } else if (c == '0') {
        spec.zero = true;
      } else {
        break;
      }
    }
    spec.width = number(kMaxWidth);
    if (spec.width < 0) {
      left = true;
      spec.width = -spec.width;
    }
    if (at_ < s_.size() && s_[at_] == '.') {
      ++at_;
      spec.precision = std::max<std::int64_t>(0, number(kMaxPrecision));
    }
    while (at_ < s_.size() && (s_[at_] == 'l' || s_[at_] == 'h' || s_[at_] == 'L')) ++at_;
    if (at_ >= s_.size()) run_.fail("an incomplete format at the end of the text");
    spec.type = s_[at_++];
    if (left) {
      spec.align = '<';
      spec.zero = false;
    }
    if (spec.type == '%') return out_.add('%');
    write(keyed.is_absent() ? next() : keyed, spec);
  }

  void write(const Value& v, FormatSpec spec) {
    switch (spec.type) {
      case 's':
      case 'r':
      case 'a': {
        std::string text = spec.type == 's' ? to_text(run_, v) : to_repr(run_, v);
        if (markup_ && !is_markup(v)) text = escape_html(run_, text);
        const auto keep = spec.precision < 0
                              ? text.size()
                              : offset_of(text, static_cast<std::size_t>(spec.precision));
        spec.zero = false;
        return out_.add(pad(run_, std::string_view(text).substr(0, keep), spec, '>'));
      }
      case 'c': {
        std::string text;
        if (v.is_whole() && v.whole() >= 0 && v.whole() <= 0x10FFFF) {
          append_utf8(text, static_cast<char32_t>(v.whole()));
        } else if (v.is_string() && str_of(v).points == 1) {
          text = text_of(v);
        } else {
          run_.fail("%c needs a code point or one character");
        }
        return out_.add(pad(run_, text, spec, '>'));
      }
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o': {
        std::int64_t whole = 0;
        const bool decimal = spec.type != 'x' && spec.type != 'X' && spec.type != 'o';
        if (v.is_whole()) {
          whole = v.whole();
        } else if (v.is(Kind::real) && decimal && std::abs(v.d) < 9.2e18) {
          whole = static_cast<std::int64_t>(v.d);
        } else {
          wrong(v, spec.type);
        }
        return out_.add(format_whole(run_, whole, spec));
      }
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        if (!v.is_whole() && !v.is(Kind::real)) wrong(v, spec.type);
        return out_.add(
            format_real(run_, v.is(Kind::real) ? v.d : static_cast<double>(v.whole()), spec));
      }
      default:
        run_.fail(std::string("unsupported format character '") + spec.type + "'");
    }
  }

  [[noreturn]] void wrong(const Value& v, char type) {
    if (v.is_undefined()) run_.use_of_undefined(v);
    run_.fail(std::string("%") + type + " needs a number, found " + type_name(v));
  }

  Run& run_;
  std::string_view s_;
  bool markup_;
  const Value& args_;
  TextBuilder out_;
  std::size_t at_ = 0, used_ = 0;
  bool keyed_ = false;
};

class Braces {
 public:
  Braces(Run& run, bool markup, const std::vector<Value>& args, const NamedValues& named)
      : run_(run), markup_(markup), args_(args), named_(named) {}

  std::string go(std::string_view s, int level) {
    if (level > 2) run_.fail("a format nested too deep");
    TextBuilder out(run_);
    for (std::size_t at = 0; at < s.size(); ++at) {
      if (s[at] != '{' && s[at] != '}') {
        const auto next = std::min(s.find_first_of("{}", at), s.size());
        out.add(s.substr(at, next - at));
        at = next - 1;
      } else if (at + 1 < s.size() && s[at + 1] == s[at]) {
        out.add(s[at++]);
      } else if (s[at] == '}') {
        run_.fail("a single '}' in a format");
      } else {
        const std::size_t start = at + 1;
        int open = 1;
        for (++at; at < s.size(); ++at) {
          if (s[at] == '{') ++open;
          if (s[at] == '}' && --open == 0) break;
        }
        if (open != 0) run_.fail("a '{' without its '}' in a format");
        out.add(field(s.substr(start, at - start), level));
      }
    }
    return out.take();
  }

 private:
  std::string field(std::string_view f, int level) {
    const std::size_t end = std::min(f.find_first_of("!:"), f.size());
    Value v = lookup(f.substr(0, end));
    std::size_t at = end;
    if (at < f.size() && f[at] == '!') {
      if (at + 1 >= f.size()) run_.fail("a format ends after '!'");
      const char how = f[at + 1];
      if (how != 's' && how != 'r' && how != 'a')
        run_.fail(std::string("unknown conversion '") + how + "'");
      v = run_.text(how == 's' ? to_text(run_, v) : to_repr(run_, v));
      at += 2;
      if (at < f.size() && f[at] != ':') run_.fail("expected ':' after a conversion");
    }
    std::string spec = at < f.size() ? std::string(f.substr(at + 1)) : "";
    if (spec.find_first_of("{}") != std::string::npos) spec = go(spec, level + 1);
    std::string text = format_value(run_, v, parse_spec(run_, spec));
    return markup_ && !is_markup(v) ? escape_html(run_, text) : text;
  }

  Value lookup(std::string_view path) {
    std::size_t at = std::min(path.find_first_of(".["), path.size());
    const std::string_view name = path.substr(0, at);
    Value v = first(name);
    while (at < path.size()) {
      if (path[at] == '.') {
        const std::size_t to = std::min(path.find_first_of(".[", at + 1), path.size());
        v = attribute(run_, v, run_.text(std::string(path.substr(at + 1, to - at - 1))));
        at = to;
      } else {
        const std::size_t to = path.find(']', at);
        if (path[at] != '[' || to == std::string_view::npos)
          run_.fail("a malformed field in a format");
        const std::string_view key = path.substr(at + 1, to - at - 1);
        std::int64_t index = 0;
        const auto r = std::from_chars(key.data(), key.data() + key.size(), index);
        const bool digits = r.ec == std::errc() && r.ptr == key.data() + key.size() && !key.empty();
        v = item(run_, v, digits ? Value::integer(index) : run_.text(std::string(key)));
        at = to + 1;
      }
      if (v.is_undefined()) run_.use_of_undefined(v);
    }
    return v;
  }

  Value first(std::string_view name) {
    if (name.empty()) return positional(automatic_++);
    std::size_t index = 0;
    const auto r = std::from_chars(name.data(), name.data() + name.size(), index);
    if (r.ec == std::errc() && r.ptr == name.data() + name.size()) return positional(index);
    for (const auto& [key, value] : named_) {
      if (key == name) return value;
    }
    run_.fail("no value for '" + std::string(name) + "' in a format");
  }
  Value positional(std::size_t index) {
    if (index >= args_.size())
      run_.fail("a format needs more than " + std::to_string(args_.size()) + " arguments");
    return args_[index];
  }

  Run& run_;
  bool markup_;
  const std::vector<Value>& args_;
  const NamedValues& named_;
  std::size_t automatic_ = 0;
};

}  // namespace

std::string format_percent(Run& run, const Value& format, const Value& args) {
  return Percent(run, format, args).go();
}

std::string format_braces(Run& run, const Value& format, const std::vector<Value>& args,
                          const NamedValues& named) {
  return Braces(run, is_markup(format), args, named).go(text_of(format), 0);
}

}  // namespace nibble::chat
