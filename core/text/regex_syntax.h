// regex_syntax.h: patterns of tokenizer.json (Oniguruma, Ruby syntax) rewritten for PCRE2.
#pragma once

#include <string>
#include <string_view>

namespace nibble {

// What means the same in both is kept; \s \S \w \W \d \D \h \v \b \u and properties are spelled out
// because the two differ there (PCRE2's \s has U+180E, its \w lacks marks, \p{Han} is wider);
// what cannot be said in PCRE2, or has never been seen in a tokenizer, is refused by name.
// `where` starts the message. Throws Error(bad_file | unsupported).
std::string to_pcre2_syntax(std::string_view pattern, const std::string& where);

// A pattern that matches exactly this text.
std::string literal_pattern(std::string_view text);

}  // namespace nibble
