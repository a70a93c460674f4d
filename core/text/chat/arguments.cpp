// arguments.cpp: what builtins ask of their arguments.
#include <algorithm>

#include "core/text/chat/run.h"

namespace nibble::chat {

std::int64_t want_integer(Run& run, const Value& v, const char* what) {
  if (v.is_undefined()) run.use_of_undefined(v);
  if (!v.is_whole()) run.fail(std::string(what) + " must be an integer, found " + type_name(v));
  return v.whole();
}

const std::string& want_text(Run& run, const Value& v, const char* what) {
  if (v.is_undefined()) run.use_of_undefined(v);
  if (!v.is_string()) run.fail(std::string(what) + " must be a string, found " + type_name(v));
  return text_of(v);
}

std::int64_t int_or(Run& run, const Args& a, std::size_t k, std::int64_t otherwise) {
  return a.has(k) ? want_integer(run, a.at[k], "the argument") : otherwise;
}

bool bool_or(const Args& a, std::size_t k, bool otherwise) {
  return a.has(k) ? truthy(a.at[k]) : otherwise;
}

}  // namespace nibble::chat
