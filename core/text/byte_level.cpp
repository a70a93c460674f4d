#include "core/text/byte_level.h"

#include <array>

namespace nibble {
namespace {

// Printable bytes of Latin-1 stand for themselves; the other 68 take U+0100 onwards, in order.
constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<std::array<char, 2>, 256> text{};
  std::array<std::uint8_t, 256> length{};
  std::array<std::int16_t, 0x144> byte_of{};  // by code point; -1 outside

  constexpr Alphabet() {
    byte_of.fill(-1);
    unsigned next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const unsigned c = stands_for_itself(b) ? static_cast<unsigned>(b) : next++;
      byte_of[c] = static_cast<std::int16_t>(b);
      length[b] = c < 0x80 ? 1 : 2;
      text[b][0] = static_cast<char>(c < 0x80 ? c : 0xC0 | (c >> 6));
      text[b][1] = static_cast<char>(0x80 | (c & 63));
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

std::string_view byte_level_char(std::uint8_t byte) {
  return {kAlphabet.text[byte].data(), kAlphabet.length[byte]};
}

std::optional<std::string> byte_level_bytes(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (std::size_t i = 0; i < token.size(); ++i) {
    unsigned c = static_cast<unsigned char>(token[i]);
    if (c >= 0x80) {  // well-formed UTF-8, and the alphabet ends at U+0143
      if (c >= 0xE0 || i + 1 == token.size()) return std::nullopt;
      c = ((c & 31) << 6) | (static_cast<unsigned char>(token[++i]) & 63);
    }
    if (c >= kAlphabet.byte_of.size() || kAlphabet.byte_of[c] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte_of[c]);
  }
  return bytes;
}

}  // namespace nibble
