#include "tools/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace nibble::tool {
namespace {

std::string scaled(double value, double step, const std::array<const char*, 5>& names) {
  std::size_t at = 0;
  while (at + 1 < names.size() && value >= step * 0.9995) {
    value /= step;
    ++at;
  }
  const int decimals = at == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}{}", value, decimals, *names[at] == '\0' ? "" : " ", names[at]);
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  return scaled(static_cast<double>(bytes), 1024, {"B", "KiB", "MiB", "GiB", "TiB"});
}

std::string format_count(std::uint64_t count) {
  return scaled(static_cast<double>(count), 1000, {"", "k", "M", "B", "T"});
}

std::string format_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::string format_rate(double per_second) {
  if (!std::isfinite(per_second)) return "-";
  const int digits = per_second > 0 ? static_cast<int>(std::floor(std::log10(per_second))) : 0;
  return fmt::format("{:.{}f}", per_second, std::clamp(3 - digits, 0, 4));
}

std::string one_line(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n' || c == '\t' || c == '\r') {
      out += ' ';
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02X}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace nibble::tool
