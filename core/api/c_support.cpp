// c_support.cpp: status codes, the last error, strings that change owner.
#include "core/api/c_support.h"

#include <cstdlib>

namespace nibble::c_api {
namespace {

static_assert(static_cast<int>(ErrorCode::invalid_argument) + 1 == NIBBLE_INVALID_ARGUMENT);
static_assert(static_cast<int>(ErrorCode::not_found) + 1 == NIBBLE_NOT_FOUND);
static_assert(static_cast<int>(ErrorCode::bad_file) + 1 == NIBBLE_BAD_FILE);
static_assert(static_cast<int>(ErrorCode::unsupported) + 1 == NIBBLE_UNSUPPORTED);
static_assert(static_cast<int>(ErrorCode::out_of_memory) + 1 == NIBBLE_OUT_OF_MEMORY);
static_assert(static_cast<int>(ErrorCode::context_full) + 1 == NIBBLE_CONTEXT_FULL);
static_assert(static_cast<int>(ErrorCode::cancelled) + 1 == NIBBLE_CANCELLED);
static_assert(static_cast<int>(ErrorCode::internal) + 1 == NIBBLE_INTERNAL);
static_assert(static_cast<int>(ErrorCode::no_device) + 1 == NIBBLE_NO_DEVICE);
static_assert(static_cast<int>(StopReason::none) == NIBBLE_STOP_NONE);
static_assert(static_cast<int>(StopReason::stop_token) == NIBBLE_STOP_TOKEN);
static_assert(static_cast<int>(StopReason::stop_text) == NIBBLE_STOP_TEXT);
static_assert(static_cast<int>(StopReason::length) == NIBBLE_STOP_LENGTH);
static_assert(static_cast<int>(StopReason::context) == NIBBLE_STOP_CONTEXT);

thread_local std::string last_text;
// Points at last_text, or at a literal when there is no memory even for the text.
thread_local const char* last_error = "";

}  // namespace

nibble_status status_of(ErrorCode code) noexcept {
  return static_cast<nibble_status>(static_cast<int>(code) + 1);
}

nibble_status fail(nibble_status status, const char* who, const char* what) noexcept {
  try {
    last_text.clear();
    if (who) last_text.append("[").append(who).append("] ");
    last_text.append(what);
    last_error = last_text.c_str();
  } catch (...) {
    last_error = "out of memory while reporting an error";
  }
  return status;
}

void throw_null(const char* who, const char* argument) {
  throw Error(ErrorCode::invalid_argument,
              "[" + std::string(who) + "] " + argument + " is NULL, a pointer was expected");
}

void give_text(std::string_view text, char** out, std::size_t* length) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (!copy) throw std::bad_alloc();
  if (!text.empty()) std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  *out = copy;
  if (length) *length = text.size();
}

}  // namespace nibble::c_api

extern "C" {

const char* nibble_version(void) {
  return nibble::version();
}

const char* nibble_last_error(void) {
  return nibble::c_api::last_error;
}

void nibble_free_string(char* text) {
  std::free(text);
}

const char* nibble_status_name(nibble_status s) {
  switch (s) {
    case NIBBLE_OK:
      return "ok";
    case NIBBLE_INVALID_ARGUMENT:
      return "invalid_argument";
    case NIBBLE_NOT_FOUND:
      return "not_found";
    case NIBBLE_BAD_FILE:
      return "bad_file";
    case NIBBLE_UNSUPPORTED:
      return "unsupported";
    case NIBBLE_OUT_OF_MEMORY:
      return "out_of_memory";
    case NIBBLE_CONTEXT_FULL:
      return "context_full";
    case NIBBLE_CANCELLED:
      return "cancelled";
    case NIBBLE_INTERNAL:
      return "internal";
    case NIBBLE_NO_DEVICE:
      return "no_device";
    case NIBBLE_BUFFER_TOO_SMALL:
      return "buffer_too_small";
    case NIBBLE_END:
      return "end";
  }
  return "unknown";
}

const char* nibble_stop_reason_name(nibble_stop_reason r) {
  if (r < NIBBLE_STOP_NONE || r > NIBBLE_STOP_CONTEXT) return "unknown";
  return nibble::stop_reason_name(static_cast<nibble::StopReason>(r));
}

}  // extern "C"
