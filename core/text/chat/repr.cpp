// repr.cpp: values as text, as Python's str() and repr() print them.
#include <charconv>
#include <cmath>
#include <cstdio>

#include "core/text/chat/loop.h"
#include "core/text/chat/py_text.h"
#include "core/text/chat/run.h"

namespace nibble::chat {
namespace {

void add_repr(Run& run, TextBuilder& out, const Value& v);

void add_quoted(TextBuilder& out, std::string_view s) {
  const bool has_single = s.find('\'') != std::string_view::npos;
  const char quote = has_single && s.find('"') == std::string_view::npos ? '"' : '\'';
  out.add(quote);
  for (std::size_t at = 0; at < s.size();) {
    int n;
    const char32_t c = decode_at(s, at, &n);
    char buffer[16];
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.add('\\');
      out.add(static_cast<char>(c));
    } else if (c == '\n') {
      out.add("\\n");
    } else if (c == '\r') {
      out.add("\\r");
    } else if (c == '\t') {
      out.add("\\t");
    } else if (is_printable(c)) {
      out.add(s.substr(at, static_cast<std::size_t>(n)));
    } else {
      const char* how = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
      std::snprintf(buffer, sizeof buffer, how, static_cast<unsigned>(c));
      out.add(buffer);
    }
    at += static_cast<std::size_t>(n);
  }
  out.add(quote);
}

void add_items(Run& run, TextBuilder& out, const std::vector<Value>& items) {
  bool first = true;
  for (const Value& v : items) {
    if (!first) out.add(", ");
    first = false;
    add_repr(run, out, v);
  }
}

void add_dict(Run& run, TextBuilder& out, const Dict& d) {
  out.add('{');
  bool first = true;
  for (const auto& [k, v] : d.items) {
    if (!first) out.add(", ");
    first = false;
    add_repr(run, out, k);
    out.add(": ");
    add_repr(run, out, v);
  }
  out.add('}');
}

void add_repr(Run& run, TextBuilder& out, const Value& v) {
  run.step();
  const Run::Deeper deeper(run);
  switch (v.kind) {
    case Kind::absent:
    case Kind::undefined:
      out.add("Undefined");
      return;
    case Kind::none:
      out.add("None");
      return;
    case Kind::boolean:
      out.add(v.b ? "True" : "False");
      return;
    case Kind::integer:
      out.add(std::to_string(v.i));
      return;
    case Kind::big:
      out.add(text_of(v));
      return;
    case Kind::real:
      out.add(real_text(v.d));
      return;
    case Kind::string:
      if (is_markup(v)) out.add("Markup(");
      add_quoted(out, text_of(v));
      if (is_markup(v)) out.add(')');
      return;
    case Kind::list:
      out.add('[');
      add_items(run, out, seq_of(v).items);
      out.add(']');
      return;
    case Kind::tuple:
      out.add('(');
      add_items(run, out, seq_of(v).items);
      out.add(seq_of(v).items.size() == 1 ? ",)" : ")");
      return;
    case Kind::dict:
      add_dict(run, out, dict_of(v));
      return;
    case Kind::range: {
      const Range& r = range_of(v);
      out.add("range(" + std::to_string(r.start) + ", " + std::to_string(r.stop));
      out.add(r.step == 1 ? ")" : ", " + std::to_string(r.step) + ")");
      return;
    }
    case Kind::view:
      out.add(type_name(v));
      out.add("([");
      add_items(run, out, items_of(run, v));
      out.add("])");
      return;
    case Kind::name_space:
      out.add("<Namespace ");
      add_dict(run, out, namespace_of(v).attributes);
      out.add('>');
      return;
    case Kind::macro:
      if (macro_of(v).procedure->name.empty()) {
        out.add("<Macro anonymous>");
      } else {
        out.add("<Macro ");
        add_quoted(out, macro_of(v).procedure->name);
        out.add('>');
      }
      return;
    case Kind::loop:
      out.add("<LoopContext " + std::to_string(loop_of(v).index + 1) + "/" +
              std::to_string(loop_of(v).length(run)) + ">");
      return;
    default:
      out.add(std::string("<") + type_name(v) + " object>");
      return;
  }
}

}  // namespace

std::string real_text(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  if (d == 0) return std::signbit(d) ? "-0.0" : "0.0";
  // The shortest digits that read back as the same number, then Python's choice of notation.
  char buffer[32];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::scientific).ptr;
  const std::string s(buffer, end);
  const auto e = s.find('e');
  const int exponent = std::atoi(s.c_str() + e + 1);
  if (exponent < -4 || exponent >= 16) {
    std::string out = s.substr(0, e) + (exponent < 0 ? "e-" : "e+");
    const std::string digits = std::to_string(std::abs(exponent));
    return out + (digits.size() < 2 ? "0" : "") + digits;
  }
  char fixed[64];
  const auto stop = std::to_chars(fixed, fixed + sizeof fixed, d, std::chars_format::fixed).ptr;
  std::string out(fixed, stop);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

std::string to_text(Run& run, const Value& v) {
  if (v.is_string() || v.is(Kind::big)) return text_of(v);
  if (v.is_undefined() || v.is_absent()) return "";
  return to_repr(run, v);
}

std::string to_repr(Run& run, const Value& v) {
  TextBuilder out(run);
  add_repr(run, out, v);
  return out.take();
}

std::string escape_html(Run& run, std::string_view s) {
  TextBuilder out(run);
  for (const char c : s) {
    switch (c) {
      case '&':
        out.add("&amp;");
        break;
      case '<':
        out.add("&lt;");
        break;
      case '>':
        out.add("&gt;");
        break;
      case '"':
        out.add("&#34;");
        break;
      case '\'':
        out.add("&#39;");
        break;
      default:
        out.add(c);
    }
  }
  return out.take();
}

Value escape(Run& run, const Value& v) {
  if (is_markup(v)) return v;
  return run.text(escape_html(run, to_text(run, v)), true);
}

}  // namespace nibble::chat
