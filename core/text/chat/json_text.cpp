// json_text.cpp: the tojson filter, as Python's json.dumps writes.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/text/chat/py_text.h"
#include "core/text/chat/run.h"

namespace nibble::chat {
namespace {

class Writer {
 public:
  Writer(Run& run, const JsonStyle& style) : run_(run), style_(style), out_(run) {}
  std::string take() { return out_.take(); }

  void value(const Value& v) {
    run_.step();
    const Run::Deeper deeper(run_);
    switch (v.kind) {
      case Kind::none:
        out_.add("null");
        return;
      case Kind::boolean:
        out_.add(v.b ? "true" : "false");
        return;
      case Kind::integer:
        out_.add(std::to_string(v.i));
        return;
      case Kind::big:
        out_.add(text_of(v));
        return;
      case Kind::real:
        out_.add(real(v.d));
        return;
      case Kind::string:
        quoted(text_of(v));
        return;
      case Kind::list:
      case Kind::tuple:
        array(seq_of(v).items);
        return;
      case Kind::dict:
        object(dict_of(v));
        return;
      default:
        run_.fail(std::string("tojson: a value of type ") + type_name(v) +
                  " cannot be written as JSON");
    }
  }

 private:
  static std::string real(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
    return real_text(d);
  }

  void quoted(std::string_view s) {
    out_.add('"');
    for (std::size_t at = 0; at < s.size();) {
      int n;
      const char32_t c = decode_at(s, at, &n);
      switch (c) {
        case '"':
          out_.add("\\\"");
          break;
        case '\\':
          out_.add("\\\\");
          break;
        case '\n':
          out_.add("\\n");
          break;
        case '\r':
          out_.add("\\r");
          break;
        case '\t':
          out_.add("\\t");
          break;
        case '\f':
          out_.add("\\f");
          break;
        case '\b':
          out_.add("\\b");
          break;
        default:
          if (c < 0x20 || (style_.ascii && c > 0x7E)) {
            escaped(c);
          } else {
            out_.add(s.substr(at, static_cast<std::size_t>(n)));
          }
      }
      at += static_cast<std::size_t>(n);
    }
    out_.add('"');
  }

  void escaped(char32_t c) {
    char buffer[16];
    if (c >= 0x10000) {
      const auto v = static_cast<unsigned>(c - 0x10000);
      std::snprintf(buffer, sizeof buffer, "\\u%04x\\u%04x", 0xD800 + (v >> 10),
                    0xDC00 + (v & 1023));
    } else {
      std::snprintf(buffer, sizeof buffer, "\\u%04x", static_cast<unsigned>(c));
    }
    out_.add(buffer);
  }

  void line(int level) {
    if (!style_.indent) return;
    out_.add('\n');
    out_.fill(*style_.indent, level);
  }

  void array(const std::vector<Value>& items) {
    if (items.empty()) return out_.add("[]");
    out_.add('[');
    ++level_;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.add(style_.item_separator);
      line(level_);
      value(items[i]);
    }
    line(--level_);
    out_.add(']');
  }

  std::string key(const Value& k) {
    switch (k.kind) {
      case Kind::none:
        return "null";
      case Kind::boolean:
        return k.b ? "true" : "false";
      case Kind::integer:
        return std::to_string(k.i);
      case Kind::real:
        return real(k.d);
      case Kind::string:
      case Kind::big:
        return text_of(k);
      default:
        run_.fail(std::string("tojson: a key of type ") + type_name(k) +
                  " cannot be written as JSON");
    }
  }

  void object(const Dict& d) {
    if (d.items.empty()) return out_.add("{}");
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& i : d.items) items.push_back(&i);
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(), [&](const auto* a, const auto* b) {
        return less(run_, a->first, b->first);
      });
    }
    out_.add('{');
    ++level_;
    bool first = true;
    for (const auto* i : items) {
      if (!first) out_.add(style_.item_separator);
      first = false;
      line(level_);
      quoted(key(i->first));
      out_.add(style_.key_separator);
      value(i->second);
    }
    line(--level_);
    out_.add('}');
  }

  Run& run_;
  const JsonStyle& style_;
  TextBuilder out_;
  int level_ = 0;
};

}  // namespace

std::string json_text(Run& run, const Value& v, const JsonStyle& style) {
  Writer w(run, style);
  w.value(v);
  return w.take();
}

}  // namespace nibble::chat
