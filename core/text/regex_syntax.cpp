#include "core/text/regex_syntax.h"

#include <array>
#include <utility>

#include "core/base/quote.h"
#include "core/text/regex.h"
#include "core/text/unicode.h"
#include "nibble/error.h"

namespace nibble {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_hex(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

constexpr const char* kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : in_(pattern), where_(where) {}

  std::string run() {
    if (in_.starts_with("(?i)")) {
      out_ = "(?i)";
      at_ = 4;
    }
    while (at_ < in_.size()) {
      switch (in_[at_]) {
        case '\\':
          escape(false);
          break;
        case '[':
          char_class();
          break;
        case '(':
          group();
          break;
        case '{':
          interval();
          break;
        default:
          out_ += in_[at_++];
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(ErrorCode code, const std::string& why) const {
    throw Error(code, where_ + ": regex " + in_quotes(in_) + " at byte " + std::to_string(at_) +
                          ": " + why);
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    fail(ErrorCode::unsupported, what + " is not supported");
  }
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0';
  }

  void escape(bool in_class) {
    if (at_ + 1 >= in_.size()) fail(ErrorCode::bad_file, "ends in a backslash");
    const char c = in_[at_ + 1];
    const auto set = [&](const char* items, bool negated) {
      if (in_class && negated) unsupported(std::string("\\") + c + " inside a character class");
      out_ += in_class ? items : std::string(negated ? "[^" : "[") + items + "]";
    };
    switch (c) {
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        out_ += '\\';
        out_ += c;
        break;
      case 'v':
        out_ += "\\x{0B}";
        break;  // in PCRE2 \v is any vertical space
      case 's':
        out_ += "\\p{White_Space}";
        break;
      case 'S':
        out_ += "\\P{White_Space}";
        break;
      case 'd':
        out_ += "\\p{Nd}";
        break;
      case 'D':
        out_ += "\\P{Nd}";
        break;
      case 'w':
      case 'W':
        set(kWord, c == 'W');
        break;
      case 'h':
      case 'H':
        set("0-9a-fA-F", c == 'H');
        break;
      case 'p':
      case 'P':
        property(c);
        return;
      case 'x':
      case 'u':
        code_point(c);
        return;
      case 'b':
      case 'B':
        if (in_class) {
          if (c == 'B') unsupported("\\B inside a character class");
          out_ += "\\x{08}";
        } else {
          word_boundary(c == 'b');
        }
        break;
      case 'A':
      case 'z':
      case 'Z':
        if (in_class) unsupported(std::string("\\") + c + " inside a character class");
        out_ += '\\';
        out_ += c;
        break;
      default:
        if (is_letter(c) || is_digit(c)) unsupported(std::string("the escape \\") + c);
        if (static_cast<unsigned char>(c) < 0x80) out_ += '\\';
        out_ += c;
    }
    at_ += 2;
  }

  void word_boundary(bool wanted) {
    const std::string w = std::string("[") + kWord + "]";
    const std::string same = "(?<=" + w + ")(?=" + w + ")|(?<!" + w + ")(?!" + w + ")";
    const std::string differ = "(?<=" + w + ")(?!" + w + ")|(?<!" + w + ")(?=" + w + ")";
    out_ += "(?:" + (wanted ? differ : same) + ")";
  }

  void property(char p) {
    if (peek(2) != '{') unsupported(std::string("\\") + p + " without braces");
    const std::size_t end = in_.find('}', at_);
    if (end == in_.npos) fail(ErrorCode::bad_file, "a property without its closing brace");
    std::string name(in_.substr(at_ + 3, end - at_ - 3));
    bool negated = p == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.erase(0, 1);
    }
    for (const char c : name) {
      if (!is_letter(c) && c != '_' && c != ' ' && c != '-') {
        fail(ErrorCode::bad_file, "unknown Unicode property " + in_quotes(name));
      }
    }
    static constexpr std::pair<const char*, const char*> kLong[] = {
        {"Letter", "L"}, {"Mark", "M"},      {"Number", "N"}, {"Punctuation", "P"},
        {"Symbol", "S"}, {"Separator", "Z"}, {"Other", "C"}};
    for (const auto& [from, to] : kLong) {
      if (name == from) name = to;
    }
    // A bare script name would mean its extensions too.
    if (name.size() > 2 && Regex::compiles("\\p{sc:" + name + "}")) name = "sc:" + name;
    out_ += negated ? "\\P{" : "\\p{";
    out_ += name + "}";
    at_ = end + 1;
  }

  void code_point(char kind) {
    std::size_t begin = at_ + 2, end = begin;
    bool braces = kind == 'x' && peek(2) == '{';
    if (braces) ++begin, ++end;
    const std::size_t most = braces ? 8 : kind == 'u' ? 4 : 2;
    std::uint32_t value = 0;
    while (end < in_.size() && end - begin < most && is_hex(in_[end])) {
      value = 16 * value + static_cast<std::uint32_t>(
                               is_digit(in_[end]) ? in_[end] - '0' : (in_[end] | 32) - 'a' + 10);
      ++end;
    }
    const bool whole = braces ? end > begin && end < in_.size() && in_[end] == '}'
                              : end - begin == (kind == 'u' ? 4u : end - begin) && end > begin;
    if (!whole) fail(ErrorCode::bad_file, std::string("\\") + kind + " without its digits");
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
      fail(ErrorCode::bad_file, std::string("\\") + kind + " is no code point");
    }
    if (kind == 'x' && !braces && value >= 0x80) unsupported("\\x with a byte above 7F");
    out_ += "\\x{";
    out_.append(in_.substr(begin, end - begin));
    out_ += '}';
    at_ = end + (braces ? 1 : 0);
  }

  void char_class() {
    out_ += in_[at_++];
    if (peek() == '^') out_ += in_[at_++];
    if (peek() == ']') {
      out_ += "\\]";
      ++at_;
    }
    while (at_ < in_.size() && in_[at_] != ']') {
      if (in_[at_] == '\\') {
        escape(true);
      } else if (in_[at_] == '[') {
        unsupported(peek(1) == ':' ? "a POSIX bracket" : "a set inside a character class");
      } else if (in_[at_] == '&' && peek(1) == '&') {
        unsupported("an intersection (&&)");
      } else {
        out_ += in_[at_++];
      }
    }
    if (at_ == in_.size()) fail(ErrorCode::bad_file, "a character class without its ]");
    out_ += in_[at_++];
  }

  void group() {
    static constexpr const char* kOpeners[] = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    for (const std::string_view opener : kOpeners) {
      if (in_.substr(at_).starts_with(opener)) {
        out_ += opener;
        at_ += opener.size();
        return;
      }
    }
    if (peek(1) == '?' || peek(1) == '*') {
      unsupported("a group that opens with " + in_quotes(in_.substr(at_, 4)));
    }
    out_ += in_[at_++];
  }

  // {n}, {n,}, {,m}, {n,m}; any other brace is literal.
  void interval() {
    std::size_t end = at_ + 1;
    std::array<std::string, 2> bound;
    std::size_t side = 0;
    for (; end < in_.size() && in_[end] != '}'; ++end) {
      if (is_digit(in_[end])) {
        bound[side] += in_[end];
      } else if (in_[end] == ',' && side == 0) {
        side = 1;
      } else {
        break;
      }
    }
    if (end >= in_.size() || in_[end] != '}' || (bound[0].empty() && bound[1].empty())) {
      out_ += "\\{";
      ++at_;
      return;
    }
    out_ += '{';
    out_ += bound[0].empty() ? "0" : bound[0];
    if (side == 1) out_ += ',';
    out_ += bound[1];
    out_ += '}';
    at_ = end + 1;
    // Ruby reads these as a repeat of the repeat.
    if (peek() == '+') unsupported("a possessive interval");
    if (peek() == '?' && side == 0) unsupported("a lazy fixed interval");
  }

  std::string_view in_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string to_pcre2_syntax(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).run();
}

std::string literal_pattern(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && !is_letter(c) && !is_digit(c)) {
      static constexpr char kHex[] = "0123456789abcdef";
      pattern += "\\x{";
      pattern += kHex[byte >> 4];
      pattern += kHex[byte & 15];
      pattern += '}';
    } else {
      pattern += c;
    }
  }
  return pattern;
}

}  // namespace nibble
