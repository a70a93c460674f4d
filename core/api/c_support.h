// c_support.h: what the files of the C ABI share: handles, and the wall that exceptions do not
// cross.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include "nibble/nibble.h"
#include "nibble/nibble.hpp"

struct nibble_model {
  nibble::Model model;
};

namespace nibble::c_api {

// Shared by a session's handle and its streams, so that either may be freed first.
struct SessionBox {
  Model model;  // before the session: destroyed after it
  Session session;
};

nibble_status fail(nibble_status status, const char* who, const char* what) noexcept;
nibble_status status_of(ErrorCode code) noexcept;

// Runs `body`, which returns a status; whatever it throws becomes a status and the last error's
// text.
template <class Body>
nibble_status guarded(const char* who, Body&& body) noexcept {
  try {
    return body();
  } catch (const Error& e) {
    return fail(status_of(e.code()), nullptr, e.what());
  } catch (const std::bad_alloc&) {
    return fail(NIBBLE_OUT_OF_MEMORY, who, "the host is out of memory");
  } catch (const std::exception& e) {
    return fail(NIBBLE_INTERNAL, who, e.what());
  } catch (...) {
    return fail(NIBBLE_INTERNAL, who, "an exception of unknown type (from a callback?)");
  }
}

[[noreturn]] void throw_null(const char* who, const char* argument);

template <class T>
T& need(T* pointer, const char* who, const char* argument) {
  if (!pointer) throw_null(who, argument);
  return *pointer;
}

// An array argument: NULL is fine when it holds nothing.
template <class T>
std::span<const T> array(const T* first, std::size_t count, const char* who, const char* argument) {
  if (!first && count > 0) throw_null(who, argument);
  return {first, count};
}

// Hands out a copy that nibble_free_string() takes back.
void give_text(std::string_view text, char** out, std::size_t* length);

template <class T>
nibble_status give_array(std::span<const T> values, T* out, std::size_t capacity,
                         std::size_t* count, const char* who) {
  need(count, who, "count") = values.size();
  if (!out) return NIBBLE_OK;
  if (capacity < values.size()) {
    return fail(NIBBLE_BUFFER_TOO_SMALL, who,
                ("the array has room for " + std::to_string(capacity) + " values, " +
                 std::to_string(values.size()) + " are needed")
                    .c_str());
  }
  std::copy(values.begin(), values.end(), out);
  return NIBBLE_OK;
}

Device device_of(const nibble_load_options& o);
nibble_load_options read(const nibble_load_options* given, const char* who);
nibble_synthetic_options read(const nibble_synthetic_options* given, const char* who);
nibble_sampling read(const nibble_sampling* given, const char* who);
LoadOptions load_options_of(const nibble_load_options& o, const char* who);
SyntheticOptions synthetic_options_of(const nibble_synthetic_options& o);
Sampling sampling_of(const nibble_sampling& o, const char* who);

}  // namespace nibble::c_api

struct nibble_session {
  std::shared_ptr<nibble::c_api::SessionBox> box;
};

struct nibble_stream {
  std::shared_ptr<nibble::c_api::SessionBox> box;  // before the stream: destroyed after it
  nibble::TokenStream stream;
  std::string text;  // of the latest piece, with the zero byte that C wants
};

struct nibble_mark {
  nibble::Model model;
  nibble::Mark mark;
};
