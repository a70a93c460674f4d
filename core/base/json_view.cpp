#include <cmath>
#include <cstdio>

#include "core/base/json.h"
#include "nibble/error.h"

namespace nibble {
namespace {

std::string show(const Json& v) {
  std::string text = v.dump();
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return std::string(v.type_name()) + (v.is_null() ? "" : " " + text);
}

std::string show(double v) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%g", v);
  return buffer;
}

}  // namespace

bool JsonView::has(std::string_view key) const {
  const Json* v = value_->find(key);
  return v != nullptr && !v->is_null();
}

JsonView JsonView::at(std::string_view key) const {
  const Json* v = value_->find(key);
  if (v == nullptr) fail(key, "missing");
  const char* joint = path_.find(": ") == std::string::npos ? ": " : ".";
  return {*v, path_ + joint + std::string(key)};
}

void JsonView::fail(std::string_view key, const std::string& message) const {
  const char* joint = path_.find(": ") == std::string::npos ? ": " : ".";
  throw Error(ErrorCode::bad_file, path_ + joint + std::string(key) + ": " + message);
}

std::int64_t JsonView::integer(std::string_view key, std::int64_t low, std::int64_t high) const {
  const Json& v = at(key).json();
  const bool fits = v.is_integer() && v.as_double() < 9.2e18;
  if (!fits || v.as_int() < low || v.as_int() > high) {
    fail(key, "expected an integer from " + std::to_string(low) + " to " + std::to_string(high) +
                  ", found " + show(v));
  }
  return v.as_int();
}

double JsonView::number(std::string_view key, double low, double high) const {
  const Json& v = at(key).json();
  if (!v.is_number() || !(v.as_double() >= low && v.as_double() <= high)) {
    fail(key, "expected a number from " + show(low) + " to " + show(high) + ", found " + show(v));
  }
  return v.as_double();
}

std::string JsonView::string(std::string_view key) const {
  const Json& v = at(key).json();
  if (!v.is_string()) fail(key, "expected a string, found " + show(v));
  return v.as_string();
}

bool JsonView::boolean(std::string_view key) const {
  const Json& v = at(key).json();
  if (!v.is_bool()) fail(key, "expected true or false, found " + show(v));
  return v.as_bool();
}

JsonView JsonView::object(std::string_view key) const {
  JsonView v = at(key);
  if (!v.json().is_object()) fail(key, "expected an object, found " + show(v.json()));
  return v;
}

std::span<const Json> JsonView::array(std::string_view key) const {
  const Json& v = at(key).json();
  if (!v.is_array()) fail(key, "expected an array, found " + show(v));
  return v.as_array();
}

std::int64_t JsonView::integer_or(std::string_view key, std::int64_t otherwise, std::int64_t low,
                                  std::int64_t high) const {
  return has(key) ? integer(key, low, high) : otherwise;
}

double JsonView::number_or(std::string_view key, double otherwise, double low, double high) const {
  return has(key) ? number(key, low, high) : otherwise;
}

std::string JsonView::string_or(std::string_view key, std::string otherwise) const {
  return has(key) ? string(key) : std::move(otherwise);
}

bool JsonView::boolean_or(std::string_view key, bool otherwise) const {
  return has(key) ? boolean(key) : otherwise;
}

}  // namespace nibble
