// json.h: a strict JSON reader for hostile files, and a small writer.
//
// Reader: RFC 8259, UTF-8 only, no comments, no trailing commas, no NaN. Refused with an error that
// names the source and the byte: duplicate keys (unless allowed), nesting beyond 64, numbers that
// overflow a double, a byte order mark. Objects keep the order of their keys.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace nibble {

class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;  // in file order

  Json() = default;  // null
  Json(std::nullptr_t) {}
  Json(bool v) : value_(v) {}
  Json(std::int64_t v) : value_(v) {}
  Json(int v) : value_(static_cast<std::int64_t>(v)) {}
  Json(std::uint64_t v);  // becomes int64 where it fits
  Json(double v) : value_(v) {}
  Json(std::string v) : value_(std::move(v)) {}
  Json(std::string_view v) : value_(std::string(v)) {}
  Json(const char* v) : value_(std::string(v)) {}
  Json(Array v) : value_(std::move(v)) {}
  Json(Object v) : value_(std::move(v)) {}

  // `source` is what errors call the text (a file name). Throws Error(bad_file).
  struct ParseOptions {
    bool allow_duplicate_keys = false;  // true: the last one wins
    int max_depth = 64;
  };
  static Json parse(std::string_view text, const std::string& source) {
    return parse(text, source, ParseOptions{});
  }
  static Json parse(std::string_view text, const std::string& source, const ParseOptions& how);
  // indent < 0: one line, as Python's json.dumps(separators=(", ", ": "), ensure_ascii=False).
  std::string dump(int indent = -1) const;

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const;  // int64 or uint64 in the file: `256`, not `256.0`
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  const char* type_name() const;  // "null", "boolean", "integer", "number", "string", "array", ...

  // Unchecked by name: the caller has asked is_...() first; a wrong kind throws Error(internal).
  bool as_bool() const;
  std::int64_t as_int() const;  // throws Error(bad_file) when a uint64 does not fit
  std::uint64_t as_uint() const;
  double as_double() const;
  const std::string& as_string() const;
  const Array& as_array() const;
  const Object& as_object() const;
  Array& as_array();
  Object& as_object();

  const Json* find(std::string_view key) const;  // nullptr if absent or not an object
  void set(std::string key, Json value);         // object only; replaces or appends

  bool operator==(const Json&) const = default;

 private:
  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Array, Object>
      value_;
};

// A view of one object inside a file that knows its own path, so that every complaint reads
// `config.json: text_config.hidden_size: expected an integer in [1, 1048576], found string "256"`.
class JsonView {
 public:
  JsonView(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const Json& json() const { return *value_; }
  const std::string& path() const { return path_; }
  bool has(std::string_view key) const;   // present and not null
  JsonView at(std::string_view key) const;  // throws Error(bad_file) `missing`

  // Required values; the range is inclusive.
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high) const;
  double number(std::string_view key, double low, double high) const;
  std::string string(std::string_view key) const;
  bool boolean(std::string_view key) const;
  JsonView object(std::string_view key) const;
  std::span<const Json> array(std::string_view key) const;

  // With a default for an absent (or null) key; a present one of the wrong kind still throws.
  std::int64_t integer_or(std::string_view key, std::int64_t otherwise, std::int64_t low,
                          std::int64_t high) const;
  double number_or(std::string_view key, double otherwise, double low, double high) const;
  std::string string_or(std::string_view key, std::string otherwise) const;
  bool boolean_or(std::string_view key, bool otherwise) const;

  [[noreturn]] void fail(std::string_view key, const std::string& message) const;

 private:
  const Json* value_;
  std::string path_;
};

}  // namespace nibble
