// builtins.h: the tables of filters and methods, and what they share.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include "core/text/chat/run.h"

namespace nibble::chat {

struct FormatSpec;

template <std::size_t N>
const Builtin* find_in_table(const Builtin (&table)[N], std::string_view name) {
  const auto it = std::find_if(std::begin(table), std::end(table),
                               [&](const Builtin& b) { return b.name == name; });
  return it == std::end(table) ? nullptr : it;
}

const Builtin* find_text_method(std::string_view name);
const Builtin* find_pad_method(std::string_view name);
const Builtin* find_markup_method(std::string_view name);
const Builtin* find_text_filter(std::string_view name);
const Builtin* find_layout_filter(std::string_view name);
const Builtin* find_value_filter(std::string_view name);
const Builtin* find_list_filter(std::string_view name);
const Builtin* find_select_filter(std::string_view name);
const Builtin* find_markup_filter(std::string_view name);

std::string replace_text(Run& run, std::string_view s, std::string_view old, std::string_view fresh,
                         std::int64_t most);
std::string centered(Run& run, std::string_view s, FormatSpec spec);
std::string strip_tags(Run& run, std::string_view s);

// The attribute argument of map, sort, groupby, ...: 'a.b.0' or an integer.
using Path = std::vector<Value>;
Path attribute_path(Run& run, const Value& attribute);
Value follow(Run& run, const Path& path, Value v, const Value& otherwise = Value::absent());
// Text compares in lower case unless told otherwise.
Value ignore_case(Run& run, const Value& v, bool case_sensitive);

}  // namespace nibble::chat
