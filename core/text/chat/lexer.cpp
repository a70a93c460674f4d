#include "core/text/chat/lexer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/text/chat/py_text.h"
#include "core/text/unicode.h"
#include "nibble/error.h"

namespace nibble::chat {

void syntax_error(const std::string& name, int line, const std::string& what) {
  throw Error(ErrorCode::bad_file, name + ": line " + std::to_string(line) + ": " + what);
}

std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

namespace {

struct Operator {
  std::string_view text;
  Tok kind;
};
constexpr Operator kOperators[] = {  // longer ones first
    {"//", Tok::floordiv}, {"**", Tok::pow},     {"==", Tok::eq},    {"!=", Tok::ne},
    {">=", Tok::ge},       {"<=", Tok::le},      {"+", Tok::add},    {"-", Tok::sub},
    {"/", Tok::div},       {"*", Tok::mul},      {"%", Tok::mod},    {"~", Tok::tilde},
    {"[", Tok::lbracket},  {"]", Tok::rbracket}, {"(", Tok::lparen}, {")", Tok::rparen},
    {"{", Tok::lbrace},    {"}", Tok::rbrace},   {">", Tok::gt},     {"<", Tok::lt},
    {"=", Tok::assign},    {".", Tok::dot},      {":", Tok::colon},  {"|", Tok::pipe},
    {",", Tok::comma},     {";", Tok::semicolon}};

bool digit(char c) {
  return c >= '0' && c <= '9';
}
bool hex(char c) {
  return digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name) : s_(source), name_(name) {}

  std::vector<Token> run() {
    while (at_ < s_.size()) text();
    push(Tok::end, "");
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { syntax_error(name_, line_, what); }
  bool looking_at(std::string_view what, std::size_t from) const {
    return s_.substr(std::min(from, s_.size())).starts_with(what);
  }
  void push(Tok kind, std::string text) { out_.push_back({kind, line_, std::move(text)}); }

  // Moves on to `to`, counting lines; a match that ends a line lets the next tag strip its indent.
  void advance(std::size_t to) {
    line_ += static_cast<int>(std::count(s_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         s_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    if (to > at_) line_start_ = s_[to - 1] == '\n';
    at_ = to;
  }
  std::size_t skip_space(std::size_t from) const {
    return s_.size() - strip_left(s_.substr(from)).size();
  }

  // The text that stands before a tag at `tag`, after what the tag's sign and lstrip_blocks remove.
  std::string_view before_tag(std::size_t tag, char sign, bool output) const {
    std::string_view t = s_.substr(at_, tag - at_);
    if (sign == '-') return strip_right(t);
    if (sign == '+' || output) return t;
    const auto newline = t.rfind('\n');
    const std::size_t indent = newline == std::string_view::npos ? 0 : newline + 1;
    if ((indent > 0 || line_start_) && strip_left(t.substr(indent)).empty())
      return t.substr(0, indent);
    return t;
  }
  char sign_at(std::size_t at) const {
    return at < s_.size() && (s_[at] == '-' || s_[at] == '+') ? s_[at] : '\0';
  }

  void text() {
    std::size_t tag = at_;
    for (;; ++tag) {
      tag = s_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 >= s_.size()) {
        push(Tok::data, std::string(s_.substr(at_)));
        advance(s_.size());
        return;
      }
      if (s_[tag + 1] == '{' || s_[tag + 1] == '%' || s_[tag + 1] == '#') break;
    }
    const char kind = s_[tag + 1], sign = sign_at(tag + 2);
    const std::string_view kept = before_tag(tag, sign, kind == '{');
    if (!kept.empty()) push(Tok::data, std::string(kept));
    std::size_t after = tag + 2 + (sign ? 1 : 0);
    std::size_t raw_end = 0;
    if (kind == '%' && is_raw(after, "raw", &raw_end, false)) {
      advance(raw_end);
      raw();
      return;
    }
    advance(after);
    if (kind == '#') {
      comment();
      return;
    }
    push(kind == '{' ? Tok::output_begin : Tok::tag_begin, "");
    inside(kind == '{');
  }

  // Whether `raw %}` (with what may surround it) stands at `from`; *end is the byte after it.
  bool is_raw(std::size_t from, std::string_view word, std::size_t* end, bool trims) const {
    std::size_t at = skip_space(from);
    if (!looking_at(word, at)) return false;
    at = skip_space(at + word.size());
    return tag_end(at, "%}", trims, end);
  }
  // `-%}` with white space after it, `%}` with one newline after it (if `trims`), or `+%}`.
  bool tag_end(std::size_t at, std::string_view close, bool trims, std::size_t* end) const {
    if (looking_at("-", at) && looking_at(close, at + 1)) {
      *end = skip_space(at + 3);
      return true;
    }
    if (trims && looking_at("+", at) && looking_at(close, at + 1)) {
      *end = at + 3;
      return true;
    }
    if (!looking_at(close, at)) return false;
    *end = at + 2 + (trims && looking_at("\n", at + 2) ? 1 : 0);
    return true;
  }

  void comment() {
    const std::size_t close = s_.find("#}", at_);
    if (close == std::string_view::npos) fail("missing end of comment tag");
    std::size_t end = 0;
    const bool signed_close = close > at_ && (s_[close - 1] == '-' || s_[close - 1] == '+');
    tag_end(close - (signed_close ? 1 : 0), "#}", true, &end);
    advance(end);
  }

  void raw() {
    for (std::size_t tag = at_;; ++tag) {
      tag = s_.find("{%", tag);
      if (tag == std::string_view::npos) fail("missing end of raw directive, expected endraw");
      const char sign = sign_at(tag + 2);
      std::size_t end = 0;
      if (!is_raw(tag + 2 + (sign ? 1 : 0), "endraw", &end, true)) continue;
      push(Tok::data, std::string(before_tag(tag, sign, false)));
      advance(end);
      return;
    }
  }

  void inside(bool output) {
    std::vector<char> open;  // brackets wait for these
    for (;;) {
      advance(skip_space(at_));
      if (at_ >= s_.size()) return;  // the parser reports what it missed
      std::size_t end = 0;
      if (open.empty() && tag_end(at_, output ? "}}" : "%}", !output, &end)) {
        push(output ? Tok::output_end : Tok::tag_end, "");
        advance(end);
        return;
      }
      const char c = s_[at_];
      int n;
      const char32_t point = decode_at(s_, at_, &n);
      if (digit(c)) {
        number();
      } else if (c == '\'' || c == '"') {
        string(c);
      } else if (is_word(point)) {
        std::size_t to = at_;
        while (to < s_.size() && is_word(decode_at(s_, to, &n))) to += static_cast<std::size_t>(n);
        push(Tok::name, std::string(s_.substr(at_, to - at_)));
        advance(to);
      } else {
        punctuation(open);
      }
    }
  }

  void punctuation(std::vector<char>& open) {
    const auto it = std::find_if(std::begin(kOperators), std::end(kOperators),
                                 [&](const Operator& o) { return looking_at(o.text, at_); });
    if (it == std::end(kOperators)) {
      int n;
      decode_at(s_, at_, &n);
      fail("unexpected character '" + std::string(s_.substr(at_, static_cast<std::size_t>(n))) +
           "'");
    }
    const char c = it->text[0];
    if (c == '(') open.push_back(')');
    if (c == '[') open.push_back(']');
    if (c == '{') open.push_back('}');
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) fail(std::string("unexpected '") + c + "'");
      if (open.back() != c) {
        fail(std::string("unexpected '") + c + "', expected '" + open.back() + "'");
      }
      open.pop_back();
    }
    push(it->kind, std::string(it->text));
    advance(at_ + it->text.size());
  }

  // Digits with single underscores between them.
  std::size_t digits(std::size_t from, bool (*ok)(char)) const {
    std::size_t at = from;
    while (at < s_.size() &&
           (ok(s_[at]) || (s_[at] == '_' && at > from && at + 1 < s_.size() && ok(s_[at + 1])))) {
      ++at;
    }
    return at;
  }

  void number() {
    std::size_t to = at_;
    const char second = at_ + 1 < s_.size() ? static_cast<char>(s_[at_ + 1] | 0x20) : '\0';
    if (s_[at_] == '0' && (second == 'x' || second == 'o' || second == 'b')) {
      const auto ok = second == 'x'   ? hex
                      : second == 'o' ? [](char c) { return c >= '0' && c <= '7'; }
                                      : [](char c) { return c == '0' || c == '1'; };
      const std::size_t first = at_ + 2 + (looking_at("_", at_ + 2) ? 1 : 0);
      to = digits(first, ok);
      if (to > first) return finish_number(Tok::integer, to);
    }
    to = digits(at_, digit);
    const std::size_t whole = to;
    bool real = false;
    if (looking_at(".", to) && to + 1 < s_.size() && digit(s_[to + 1])) {
      to = digits(to + 1, digit);
      real = true;
    }
    if (looking_at("e", to) || looking_at("E", to)) {
      std::size_t power = to + 1;
      if (looking_at("+", power) || looking_at("-", power)) ++power;
      if (power < s_.size() && digit(s_[power])) {
        to = digits(power, digit);
        real = true;
      }
    }
    if (real) return finish_number(Tok::real, to);
    to = whole;
    if (s_[at_] == '0') {  // 007 is a zero and then a seven
      to = digits(at_, [](char c) { return c == '0'; });
    }
    finish_number(Tok::integer, to);
  }
  void finish_number(Tok kind, std::size_t to) {
    std::string text(s_.substr(at_, to - at_));
    std::erase(text, '_');
    push(kind, std::move(text));
    advance(to);
  }

  void string(char quote) {
    std::size_t to = at_ + 1;
    while (to < s_.size() && s_[to] != quote) to += s_[to] == '\\' ? 2 : 1;
    if (to >= s_.size())
      fail(std::string("unexpected character '") + quote + "', the string never ends");
    push(Tok::string, unescape(s_.substr(at_ + 1, to - at_ - 1)));
    advance(to + 1);
  }

  std::string unescape(std::string_view t) const {
    std::string out;
    for (std::size_t i = 0; i < t.size(); ++i) {
      if (t[i] != '\\' || i + 1 >= t.size()) {
        out += t[i];
        continue;
      }
      const char c = t[++i];
      static constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
      const auto simple = kFrom.find(c);
      if (simple != std::string_view::npos) {
        out += kTo[simple];
      } else if (c == '\n') {
        continue;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const std::size_t want = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        char32_t point = 0;
        for (std::size_t k = 1; k <= want; ++k) {
          if (i + k >= t.size() || !hex(t[i + k]))
            fail(std::string("truncated \\") + c + " escape");
          const char h = static_cast<char>(t[i + k] | 0x20);
          point = point * 16 + static_cast<char32_t>(digit(h) ? h - '0' : h - 'a' + 10);
        }
        if (point > 0x10FFFF) fail("illegal Unicode character in a string");
        append_utf8(out, point);
        i += want;
      } else if (c >= '0' && c <= '7') {
        char32_t point = 0;
        std::size_t k = 0;
        for (; k < 3 && i + k < t.size() && t[i + k] >= '0' && t[i + k] <= '7'; ++k) {
          point = point * 8 + static_cast<char32_t>(t[i + k] - '0');
        }
        append_utf8(out, point);
        i += k - 1;
      } else if (c == 'N') {
        fail("characters by name (\\N) are not supported");
      } else {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  std::string_view s_;
  const std::string& name_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_start_ = true;
  std::vector<Token> out_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& name) {
  return Lexer(source, name).run();
}

const char* describe(Tok kind) {
  static constexpr std::array<const char*, 36> names = {"template data",
                                                        "begin of print statement",
                                                        "end of print statement",
                                                        "begin of statement block",
                                                        "end of statement block",
                                                        "name",
                                                        "string",
                                                        "integer",
                                                        "float",
                                                        "+",
                                                        "-",
                                                        "/",
                                                        "//",
                                                        "*",
                                                        "%",
                                                        "**",
                                                        "~",
                                                        "[",
                                                        "]",
                                                        "(",
                                                        ")",
                                                        "{",
                                                        "}",
                                                        "==",
                                                        "!=",
                                                        ">",
                                                        ">=",
                                                        "<",
                                                        "<=",
                                                        "=",
                                                        ".",
                                                        ":",
                                                        "|",
                                                        ",",
                                                        ";",
                                                        "end of template"};
  return names[static_cast<std::size_t>(kind)];
}

std::string describe(const Token& token) {
  return token.kind == Tok::name ? token.text : describe(token.kind);
}

}  // namespace nibble::chat
