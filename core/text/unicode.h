// unicode.h: UTF-8 walking shared by the tokenizer and the templates.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble {

// Appends the code point as UTF-8 (surrogates and values beyond U+10FFFF as U+FFFD).
void append_utf8(std::string& out, char32_t code_point);

// Length in bytes of the well-formed sequence at the front of `text`, or 0 if it is ill-formed.
int utf8_sequence_length(std::string_view text);

}  // namespace nibble
