#include "core/base/json.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "nibble/error.h"

namespace nibble {
namespace {

// Builds a Json from nlohmann's event parser, which keeps its own stack on the heap.
class Builder {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  Builder(const std::string& source, const Json::ParseOptions& how) : source_(source), how_(how) {}

  bool null() { return add(Json()); }
  bool boolean(bool v) { return add(Json(v)); }
  bool number_integer(number_integer_t v) { return add(Json(static_cast<std::int64_t>(v))); }
  bool number_unsigned(number_unsigned_t v) { return add(Json(static_cast<std::uint64_t>(v))); }
  bool number_float(number_float_t v, const string_t&) {
    if (!std::isfinite(v)) throw Error(ErrorCode::bad_file, source_ + ": JSON number overflows");
    return add(Json(static_cast<double>(v)));
  }
  bool string(string_t& v) { return add(Json(std::move(v))); }
  bool binary(binary_t&) { return false; }

  bool start_object(std::size_t) { return open(Json(Json::Object())); }
  bool start_array(std::size_t) { return open(Json(Json::Array())); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(string_t& v) {
    Level& top = stack_.back();
    if (!top.keys.insert(v).second) {
      if (!how_.allow_duplicate_keys) {
        throw Error(ErrorCode::bad_file, source_ + ": JSON object has a duplicate key \"" + v + "\"");
      }
      std::erase_if(top.value.as_object(), [&](const Json::Member& m) { return m.first == v; });
    }
    top.key = std::move(v);
    return true;
  }

  bool parse_error(std::size_t at, const std::string&, const nlohmann::detail::exception& e) {
    // nlohmann's text starts with its own error number; what follows the location is the useful part.
    std::string why = e.what();
    const auto colon = why.find(": ");
    if (colon != std::string::npos) why = why.substr(colon + 2);
    throw Error(ErrorCode::bad_file,
                source_ + ": invalid JSON at byte " + std::to_string(at) + ": " + why);
  }

  Json take() { return std::move(root_); }

 private:
  struct Level {
    Json value;
    std::string key;
    std::unordered_set<std::string> keys;
  };

  bool open(Json container) {
    if (static_cast<int>(stack_.size()) >= how_.max_depth) {
      throw Error(ErrorCode::bad_file, source_ + ": JSON nested deeper than " +
                                           std::to_string(how_.max_depth) + " levels");
    }
    stack_.push_back({std::move(container), {}, {}});
    return true;
  }
  bool close() {
    Json done = std::move(stack_.back().value);
    stack_.pop_back();
    return add(std::move(done));
  }
  bool add(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
    } else if (Level& top = stack_.back(); top.value.is_array()) {
      top.value.as_array().push_back(std::move(value));
    } else {
      top.value.as_object().emplace_back(std::move(top.key), std::move(value));
    }
    return true;
  }

  const std::string& source_;
  const Json::ParseOptions& how_;
  std::vector<Level> stack_;
  Json root_;
};

void append_string(std::string& out, const std::string& text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u00";
          out += kHex[static_cast<unsigned char>(c) >> 4];
          out += kHex[c & 15];
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

void append_double(std::string& out, double v) {
  if (!std::isfinite(v)) {  // JSON has no such number
    out += "null";
    return;
  }
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, v).ptr;
  std::string text(buffer, end);
  if (text.find_first_of(".eE") == std::string::npos) text += ".0";
  out += text;
}

void append(std::string& out, const Json& v, int indent, int depth) {
  const auto newline = [&](int d) {
    if (indent < 0) return;
    out += '\n';
    out.append(static_cast<std::size_t>(indent * d), ' ');
  };
  const char* comma = indent < 0 ? ", " : ",";
  if (v.is_null()) {
    out += "null";
  } else if (v.is_bool()) {
    out += v.as_bool() ? "true" : "false";
  } else if (v.is_integer()) {
    const bool fits = v.as_uint() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    out += fits || v.as_double() < 0 ? std::to_string(v.as_int()) : std::to_string(v.as_uint());
  } else if (v.is_number()) {
    append_double(out, v.as_double());
  } else if (v.is_string()) {
    append_string(out, v.as_string());
  } else if (v.is_array()) {
    out += '[';
    bool first = true;
    for (const Json& item : v.as_array()) {
      if (!first) out += comma;
      first = false;
      newline(depth + 1);
      append(out, item, indent, depth + 1);
    }
    if (!first) newline(depth);
    out += ']';
  } else {
    out += '{';
    bool first = true;
    for (const auto& [key, item] : v.as_object()) {
      if (!first) out += comma;
      first = false;
      newline(depth + 1);
      append_string(out, key);
      out += ": ";
      append(out, item, indent, depth + 1);
    }
    if (!first) newline(depth);
    out += '}';
  }
}

[[noreturn]] void wrong_kind(const char* wanted, const Json& v) {
  throw Error(ErrorCode::internal, std::string("[json] asked for ") + wanted + ", holds " + v.type_name());
}

}  // namespace

Json::Json(std::uint64_t v) {
  if (v <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    value_ = static_cast<std::int64_t>(v);
  } else {
    value_ = v;
  }
}

Json Json::parse(std::string_view text, const std::string& source, const ParseOptions& how) {
  if (text.substr(0, 3) == "\xEF\xBB\xBF") {
    throw Error(ErrorCode::bad_file, source + ": JSON starts with a byte order mark (BOM)");
  }
  // nlohmann takes a NUL for the end of the text and would ignore what follows.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    throw Error(ErrorCode::bad_file,
                source + ": invalid JSON at byte " + std::to_string(nul) + ": NUL");
  }
  Builder builder(source, how);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

std::string Json::dump(int indent) const {
  std::string out;
  append(out, *this, indent, 0);
  return out;
}

bool Json::is_integer() const {
  return std::holds_alternative<std::int64_t>(value_) || std::holds_alternative<std::uint64_t>(value_);
}

const char* Json::type_name() const {
  if (is_null()) return "null";
  if (is_bool()) return "boolean";
  if (is_integer()) return "integer";
  if (is_number()) return "number";
  if (is_string()) return "string";
  return is_array() ? "array" : "object";
}

bool Json::as_bool() const {
  if (!is_bool()) wrong_kind("boolean", *this);
  return std::get<bool>(value_);
}

std::int64_t Json::as_int() const {
  if (const auto* v = std::get_if<std::int64_t>(&value_)) return *v;
  if (const auto* v = std::get_if<std::uint64_t>(&value_)) {
    throw Error(ErrorCode::bad_file, "[json] integer " + std::to_string(*v) + " exceeds 64 signed bits");
  }
  wrong_kind("integer", *this);
}

std::uint64_t Json::as_uint() const {
  if (const auto* v = std::get_if<std::uint64_t>(&value_)) return *v;
  return static_cast<std::uint64_t>(as_int());
}

double Json::as_double() const {
  if (const auto* v = std::get_if<double>(&value_)) return *v;
  if (const auto* v = std::get_if<std::uint64_t>(&value_)) return static_cast<double>(*v);
  return static_cast<double>(as_int());
}

const std::string& Json::as_string() const {
  if (!is_string()) wrong_kind("string", *this);
  return std::get<std::string>(value_);
}

const Json::Array& Json::as_array() const {
  if (!is_array()) wrong_kind("array", *this);
  return std::get<Array>(value_);
}

const Json::Object& Json::as_object() const {
  if (!is_object()) wrong_kind("object", *this);
  return std::get<Object>(value_);
}

Json::Array& Json::as_array() { return const_cast<Array&>(std::as_const(*this).as_array()); }
Json::Object& Json::as_object() { return const_cast<Object&>(std::as_const(*this).as_object()); }

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const auto& [name, value] : as_object()) {
    if (name == key) return &value;
  }
  return nullptr;
}

void Json::set(std::string key, Json value) {
  for (auto& [name, held] : as_object()) {
    if (name == key) {
      held = std::move(value);
      return;
    }
  }
  as_object().emplace_back(std::move(key), std::move(value));
}

}  // namespace nibble
