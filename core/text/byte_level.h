// byte_level.h: the alphabet of byte-level BPE, where each byte is written as one printable
// character (space as "Ġ", newline as "Ċ"), so that tokens are readable text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nibble {

// The character that stands for a byte, as UTF-8 of one or two bytes.
std::string_view byte_level_char(std::uint8_t byte);

// The bytes behind a token, or nothing if a character is outside the alphabet.
std::optional<std::string> byte_level_bytes(std::string_view token);

}  // namespace nibble
