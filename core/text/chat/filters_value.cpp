// filters_value.cpp: numbers, defaults, tojson, and what picks or counts.
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "core/text/chat/builtins.h"
#include "core/text/chat/format_spec.h"
#include "core/text/chat/py_text.h"
#include "core/text/chat/run.h"

namespace nibble::chat {
namespace {

Value fallback(Run& run, Args& a) {
  const bool use = a.self.is_undefined() || (bool_or(a, 1, false) && !truthy(a.self));
  if (!use) return a.self;
  return a.has(0) ? a.at[0] : run.text("");
}

Value absolute(Run& run, Args& a) {
  if (a.self.is(Kind::real)) return Value::real(std::abs(a.self.d));
  if (a.self.is_whole())
    return a.self.whole() < 0 ? negate(run, a.self) : Value::integer(a.self.whole());
  run.fail(std::string("abs needs a number, found ") + type_name(a.self));
}

// Python's int(text, base): blanks around, a sign, single underscores between digits.
bool parse_whole(std::string_view s, int base, Value* out) {
  s = strip_right(strip_left(s));
  const bool minus = !s.empty() && s[0] == '-';
  if (!s.empty() && (s[0] == '-' || s[0] == '+')) s.remove_prefix(1);
  if (s.size() > 2 && s[0] == '0') {
    const char c = static_cast<char>(s[1] | 0x20);
    const int own = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
    if (own && (base == own || base == 0)) {
      base = own;
      s.remove_prefix(2);
      if (!s.empty() && s[0] == '_') s.remove_prefix(1);
    }
  }
  if (base == 0) base = 10;
  std::string digits;
  for (std::size_t i = 0; i < s.size(); ++i) {
    if (s[i] == '_' && i > 0 && i + 1 < s.size() && s[i - 1] != '_') continue;
    digits += s[i];
  }
  if (digits.empty() || digits[0] == '-' || digits.size() > 4300) return false;
  std::int64_t v = 0;
  if (minus) digits.insert(digits.begin(), '-');
  const auto r = std::from_chars(digits.data(), digits.data() + digits.size(), v, base);
  if (r.ptr != digits.data() + digits.size()) return false;
  if (r.ec == std::errc()) {
    *out = Value::integer(v);
    return true;
  }
  if (r.ec != std::errc::result_out_of_range || base != 10) return false;
  digits.erase(minus ? 1 : 0, digits.find_first_not_of("-0") - (minus ? 1 : 0));
  *out = big_literal(std::move(digits));
  return true;
}

bool parse_real(std::string_view s, double* out) {
  s = strip_right(strip_left(s));
  std::string t;
  for (std::size_t i = 0; i < s.size(); ++i) {
    const bool between = i > 0 && i + 1 < s.size() &&
                         is_decimal(static_cast<unsigned char>(s[i - 1])) &&
                         is_decimal(static_cast<unsigned char>(s[i + 1]));
    if (s[i] == '_' && between) continue;
    t += s[i];
  }
  if (t.find_first_of("xX(") != std::string::npos || t.empty() ||
      is_space(static_cast<unsigned char>(t[0])))
    return false;
  char* end = nullptr;
  *out = std::strtod(t.c_str(), &end);
  return end == t.c_str() + t.size();
}

Value whole_of_real(Run& run, double d, const Value& otherwise) {
  if (std::isnan(d) || std::isinf(d)) return otherwise;
  if (std::abs(d) < 9.2e18) return Value::integer(static_cast<std::int64_t>(d));
  FormatSpec spec;
  spec.type = 'f';
  spec.precision = 0;
  return big_literal(format_real(run, d, spec));
}

Value to_int(Run& run, Args& a) {
  const Value otherwise = a.has(0) ? a.at[0] : Value::integer(0);
  const std::int64_t base = int_or(run, a, 1, 10);
  const Value& v = a.self;
  if (v.is_undefined()) run.use_of_undefined(v);
  if (v.is_whole()) return Value::integer(v.whole());
  if (v.is(Kind::big)) return v;
  if (v.is(Kind::real)) return whole_of_real(run, v.d, otherwise);
  if (!v.is_string()) return otherwise;
  Value out;
  if (base != 0 && (base < 2 || base > 36)) return otherwise;
  if (parse_whole(text_of(v), static_cast<int>(base), &out)) return out;
  double d;
  return parse_real(text_of(v), &d) ? whole_of_real(run, d, otherwise) : otherwise;
}

Value to_float(Run& run, Args& a) {
  const Value& v = a.self;
  if (v.is_undefined()) run.use_of_undefined(v);
  double d;
  if (v.is(Kind::real)) return v;
  if (v.is_whole()) return Value::real(static_cast<double>(v.whole()));
  if ((v.is_string() || v.is(Kind::big)) && parse_real(text_of(v), &d)) return Value::real(d);
  return a.has(0) ? a.at[0] : Value::real(0);
}

// Python's round() of a double: decimal, ties to even.
double round_decimal(double v, std::int64_t places) {
  if (!std::isfinite(v) || places > 320) return v;
  if (places < 0) {
    if (places < -320) return 0 * v;
    const double unit = std::pow(10.0, static_cast<double>(-places));
    return std::nearbyint(v / unit) * unit;
  }
  char buffer[720];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer - 1, v, std::chars_format::fixed,
                                 static_cast<int>(places))
                       .ptr;
  *end = '\0';
  return std::strtod(buffer, nullptr);
}

Value round(Run& run, Args& a) {
  const std::int64_t places = int_or(run, a, 0, 0);
  const std::string method = a.has(1) ? to_text(run, a.at[1]) : "common";
  const Value& v = a.self;
  if (v.is_undefined()) run.use_of_undefined(v);
  if (!v.is_whole() && !v.is(Kind::real))
    run.fail(std::string("round needs a number, found ") + type_name(v));
  if (method != "common" && method != "ceil" && method != "floor") {
    run.fail("round: the method must be common, ceil or floor");
  }
  if (method == "common") {
    if (v.is_whole()) {
      if (places >= 0) return Value::integer(v.whole());
      if (places < -18) return Value::integer(0);
      std::int64_t unit = 1;
      for (std::int64_t k = 0; k < -places; ++k) unit *= 10;
      std::int64_t down = v.whole() / unit, rest = v.whole() % unit;
      const std::int64_t twice = 2 * std::abs(rest);
      if (twice > unit || (twice == unit && down % 2 != 0)) down += rest < 0 ? -1 : 1;
      return binary(run, Op::mul, Value::integer(down), Value::integer(unit));
    }
    return Value::real(round_decimal(v.d, places));
  }
  const double unit = std::pow(10.0, static_cast<double>(places));
  const double scaled = (v.is_whole() ? static_cast<double>(v.whole()) : v.d) * unit;
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
}

Value length(Run& run, Args& a) {
  return Value::integer(static_cast<std::int64_t>(length_of(run, a.self)));
}

Value to_json(Run& run, Args& a) {
  JsonStyle style;
  style.ascii = bool_or(a, 0, false);
  if (a.has(1) && !a.at[1].is(Kind::none)) {
    if (a.at[1].is_string()) {
      style.indent = text_of(a.at[1]);
    } else {
      TextBuilder fill(run);
      fill.fill(" ", want_integer(run, a.at[1], "tojson: the indent"));
      style.indent = fill.take();
    }
    style.item_separator.assign(1, ',');
  }
  if (a.has(2) && !a.at[2].is(Kind::none)) {
    const auto two = items_of(run, a.at[2]);
    if (two.size() != 2) run.fail("tojson: expected two separators");
    style.item_separator = want_text(run, two[0], "a separator");
    style.key_separator = want_text(run, two[1], "a separator");
  }
  style.sort_keys = bool_or(a, 3, false);
  return run.text(json_text(run, a.self, style));
}

Value attr(Run& run, Args& a) {
  // Attributes only, so a dict's keys are not found.
  const Value name = run.text(to_text(run, a.at[0]));
  if (a.self.is(Kind::dict) && !find_method(a.self, text_of(name))) {
    return run.undefined("a dict has no attribute '" + text_of(name) + "'");
  }
  return attribute(run, a.self, name);
}

Value filesizeformat(Run& run, Args& a) {
  Args none;
  none.at.fill(Value::absent());
  none.self = a.self;
  const double bytes = to_float(run, none).d;
  const bool binary_units = bool_or(a, 0, false);
  const double base = binary_units ? 1024 : 1000;
  if (bytes == 1) return run.text("1 Byte");
  if (bytes < base)
    return run.text(std::to_string(static_cast<std::int64_t>(std::max(bytes, -9e18))) + " Bytes");
  static constexpr const char* kDecimal[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
  static constexpr const char* kBinary[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
  double unit = base * base;
  int k = 0;
  while (k < 7 && bytes >= unit) {
    unit *= base;
    ++k;
  }
  FormatSpec spec;
  spec.type = 'f';
  spec.precision = 1;
  return run.text(format_real(run, base * bytes / unit, spec) + " " +
                  (binary_units ? kBinary[k] : kDecimal[k]));
}

constexpr Builtin kFilters[] = {
    {"abs", absolute},
    {"attr", attr, {"name"}, 1},
    {"count", length},
    {"d", fallback, {"default_value", "boolean"}},
    {"default", fallback, {"default_value", "boolean"}},
    {"filesizeformat", filesizeformat, {"binary"}},
    {"float", to_float, {"default"}},
    {"int", to_int, {"default", "base"}},
    {"length", length},
    {"round", round, {"precision", "method"}},
    {"tojson", to_json, {"ensure_ascii", "indent", "separators", "sort_keys"}},
};

}  // namespace

const Builtin* find_value_filter(std::string_view name) {
  return find_in_table(kFilters, name);
}

}  // namespace nibble::chat
