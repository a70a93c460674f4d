// units.h: numbers as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble::tool {

std::string format_bytes(std::uint64_t bytes);  // "812 B", "9.65 MiB"
std::string format_count(std::uint64_t count);  // "812", "9.94 M", "27.4 B"
std::string format_seconds(double seconds);     // "8.12 ms", "1.21 s"
std::string format_rate(double per_second);     // four significant digits, never an exponent

// One line that is safe on a terminal: control characters are written out.
std::string one_line(std::string_view text);

}  // namespace nibble::tool
