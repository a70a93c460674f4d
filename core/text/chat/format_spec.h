// format_spec.h: one number or text laid out: what % and str.format share.
#pragma once

#include <string>

#include "core/text/chat/run.h"

namespace nibble::chat {

struct FormatSpec {
  std::string fill = " ";
  char align = '\0';  // < > = ^
  char sign = '-';    // - + space
  bool alternate = false, zero = false;
  char grouping = '\0';  // , or _
  std::int64_t width = 0;
  std::int64_t precision = -1;
  char type = '\0';
};

constexpr std::int64_t kMaxWidth = 1 << 20;  // wider text is an attack, not a layout
constexpr std::int64_t kMaxPrecision = 1 << 10;

std::string pad(Run& run, std::string_view text, const FormatSpec& spec, char default_align);
std::string format_whole(Run& run, std::int64_t v, const FormatSpec& spec);
std::string format_real(Run& run, double v, const FormatSpec& spec);
std::string format_value(Run& run, const Value& v, const FormatSpec& spec);  // format(v, spec)
FormatSpec parse_spec(Run& run, std::string_view text);

}  // namespace nibble::chat
