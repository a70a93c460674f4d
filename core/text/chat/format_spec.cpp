#include "core/text/chat/format_spec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "core/text/chat/py_text.h"
#include "core/text/unicode.h"

namespace nibble::chat {
namespace {

std::string digits_of(std::uint64_t v, int base, bool upper) {
  char buffer[72];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, v, base).ptr;
  std::string out(buffer, end);
  if (upper) {
    std::transform(out.begin(), out.end(), out.begin(),
                   [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  }
  return out;
}

// The digits before the point, in groups.
std::string grouped(const std::string& number, char separator, std::size_t each) {
  const std::size_t whole = std::min(number.find_first_of(".e"), number.size());
  std::string out;
  for (std::size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % each == 0) out += separator;
    out += number[i];
  }
  return out + number.substr(whole);
}

std::string numeric(Run& run, bool negative, const std::string& prefix, std::string digits,
                    const FormatSpec& spec, std::size_t group) {
  if (spec.grouping) digits = grouped(digits, spec.grouping, group);
  std::string head = negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  head += prefix;
  if (spec.align == '=' || (spec.zero && spec.align == '\0')) {
    FormatSpec inner = spec;
    inner.align = '>';
    if (spec.zero && spec.align == '\0') inner.fill.assign(1, '0');
    inner.width = std::max<std::int64_t>(0, spec.width - static_cast<std::int64_t>(head.size()));
    return head + pad(run, digits, inner, '>');
  }
  return pad(run, head + digits, spec, '>');
}

std::string scientific(double v, int precision, bool upper) {
  std::vector<char> buffer(static_cast<std::size_t>(precision) + 32);
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), v,
                                 std::chars_format::scientific, precision)
                       .ptr;
  std::string out(buffer.data(), end);
  if (upper) std::replace(out.begin(), out.end(), 'e', 'E');
  return out;
}

std::string fixed(double v, int precision) {
  std::vector<char> buffer(static_cast<std::size_t>(precision) + 340);
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), v,
                                 std::chars_format::fixed, precision)
                       .ptr;
  return std::string(buffer.data(), end);
}

// `exponent_from`: the exponent from which the notation with one is taken.
std::string general(double v, int precision, int exponent_from, bool alternate) {
  precision = std::max(precision, 1);
  const std::string e = scientific(v, precision - 1, false);
  const int exponent = std::atoi(e.c_str() + e.find('e') + 1);
  const bool exponential = exponent < -4 || exponent >= exponent_from;
  std::string out = exponential ? e : fixed(v, precision - 1 - exponent);
  if (alternate || out.find('.') == std::string::npos) return out;
  const std::size_t tail = std::min(out.find('e'), out.size());
  std::size_t keep = tail;
  while (out[keep - 1] == '0') --keep;
  if (out[keep - 1] == '.') --keep;
  return out.substr(0, keep) + out.substr(tail);
}

}  // namespace

std::string pad(Run& run, std::string_view text, const FormatSpec& spec, char default_align) {
  const auto size = static_cast<std::int64_t>(count_points(text));
  if (spec.width <= size) return std::string(text);
  const std::int64_t missing = spec.width - size;
  const char align = spec.align ? spec.align : default_align;
  const std::int64_t left = align == '>' || align == '=' ? missing : align == '^' ? missing / 2 : 0;
  TextBuilder out(run);
  out.fill(spec.fill, left);
  out.add(text);
  out.fill(spec.fill, missing - left);
  return out.take();
}

std::string format_whole(Run& run, std::int64_t v, const FormatSpec& spec) {
  const auto magnitude = v < 0 ? 0 - static_cast<std::uint64_t>(v) : static_cast<std::uint64_t>(v);
  int base = 10;
  std::string prefix;
  switch (spec.type) {
    case 'x':
    case 'X':
      base = 16;
      break;
    case 'o':
      base = 8;
      break;
    case 'b':
      base = 2;
      break;
    default:
      break;
  }
  if (spec.alternate && base != 10) prefix = std::string("0") + spec.type;
  std::string digits = digits_of(magnitude, base, spec.type == 'X');
  const auto want = static_cast<std::size_t>(std::max<std::int64_t>(0, spec.precision));
  if (digits.size() < want) digits.insert(0, want - digits.size(), '0');
  return numeric(run, v < 0, prefix, std::move(digits), spec, base == 10 ? 3 : 4);
}

std::string format_real(Run& run, double v, const FormatSpec& spec) {
  const bool negative = std::signbit(v) && !std::isnan(v);
  const double m = std::abs(v);
  const bool upper = spec.type == 'E' || spec.type == 'F' || spec.type == 'G';
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  std::string digits;
  if (!std::isfinite(v)) {
    digits = std::isnan(v) ? (upper ? "NAN" : "nan") : (upper ? "INF" : "inf");
    return numeric(run, negative, "", digits + (spec.type == '%' ? "%" : ""), spec, 99);
  }
  switch (spec.type) {
    case 'e':
    case 'E':
      digits = scientific(m, precision, upper);
      break;
    case 'f':
    case 'F':
      digits = fixed(m, precision);
      break;
    case '%':
      digits = fixed(m * 100, precision) + "%";
      break;
    case 'g':
    case 'G':
    case 'n':
      digits = general(m, precision, std::max(precision, 1), spec.alternate);
      if (upper) std::replace(digits.begin(), digits.end(), 'e', 'E');
      break;
    default:  // as str(), with a precision as g but never without a point
      digits = spec.precision < 0 ? real_text(m) : general(m, precision, precision - 1, false);
      if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  }
  return numeric(run, negative, "", std::move(digits), spec, 3);
}

FormatSpec parse_spec(Run& run, std::string_view s) {
  FormatSpec spec;
  std::size_t at = 0;
  const auto peek = [&](std::size_t k) { return k < s.size() ? s[k] : '\0'; };
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '=' || c == '^'; };
  int n = 1;
  if (!s.empty()) decode_at(s, 0, &n);
  if (is_align(peek(static_cast<std::size_t>(n)))) {
    spec.fill = std::string(s.substr(0, static_cast<std::size_t>(n)));
    spec.align = s[static_cast<std::size_t>(n)];
    at = static_cast<std::size_t>(n) + 1;
  } else if (is_align(peek(0))) {
    spec.align = s[at++];
  }
  if (peek(at) == '+' || peek(at) == '-' || peek(at) == ' ') spec.sign = s[at++];
  if (peek(at) == '#') spec.alternate = ++at > 0;
  if (peek(at) == '0') {
    ++at;
    if (!spec.align) {
      spec.zero = true;
      spec.fill.assign(1, '0');
    }
  }
  const auto number = [&](std::int64_t most) {
    std::int64_t v = 0;
    for (; peek(at) >= '0' && peek(at) <= '9'; ++at) {
      v = v * 10 + (s[at] - '0');
      if (v > most) run.fail("a format with a width or precision above " + std::to_string(most));
    }
    return v;
  };
  spec.width = number(kMaxWidth);
  if (peek(at) == ',' || peek(at) == '_') spec.grouping = s[at++];
  if (peek(at) == '.') {
    ++at;
    if (peek(at) < '0' || peek(at) > '9') run.fail("a format without the digits of its precision");
    spec.precision = number(kMaxPrecision);
  }
  if (at < s.size()) spec.type = s[at++];
  if (at < s.size()) run.fail("invalid format '" + std::string(s) + "'");
  return spec;
}

std::string format_value(Run& run, const Value& v, const FormatSpec& spec) {
  const auto bad = [&]() -> std::string {
    run.fail(std::string("unknown format code '") + spec.type + "' for a value of type " +
             type_name(v));
  };
  const std::string_view real_types = "eEfFgGn%";
  const bool bare = !spec.width && !spec.align && !spec.type && !spec.grouping && !spec.zero &&
                    spec.precision < 0 && spec.sign == '-';
  if (v.is_whole() && !(v.is(Kind::boolean) && bare)) {
    if (spec.type && real_types.find(spec.type) != std::string_view::npos && spec.type != 'n') {
      return format_real(run, static_cast<double>(v.whole()), spec);
    }
    if (spec.type == 'c') {
      if (v.whole() < 0 || v.whole() > 0x10FFFF) run.fail("%c needs a code point");
      std::string one;
      append_utf8(one, static_cast<char32_t>(v.whole()));
      return pad(run, one, spec, '<');
    }
    if (spec.type && std::string_view("dnxXob").find(spec.type) == std::string_view::npos)
      return bad();
    if (spec.precision >= 0) run.fail("a precision is not allowed in the format of an integer");
    return format_whole(run, v.whole(), spec);
  }
  if (v.is(Kind::real)) {
    if (spec.type && real_types.find(spec.type) == std::string_view::npos) return bad();
    return format_real(run, v.d, spec);
  }
  if (v.is_string() || v.is(Kind::boolean) || v.is(Kind::big)) {
    if (spec.type && spec.type != 's') return bad();
    if (spec.align == '=') run.fail("'=' alignment is not allowed in the format of a string");
    const std::string text = to_text(run, v);
    const auto keep = spec.precision < 0
                          ? text.size()
                          : offset_of(text, static_cast<std::size_t>(spec.precision));
    return pad(run, std::string_view(text).substr(0, keep), spec, '<');
  }
  if (!bare) run.fail(std::string("a value of type ") + type_name(v) + " takes no format");
  return to_text(run, v);
}

}  // namespace nibble::chat
