// py_text.h: text as Python's str sees it: code points, Unicode classes and case, strip and split.
// All input is well-formed UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::chat {

bool valid_utf8(std::string_view s);
std::size_t count_points(std::string_view s);
// Byte offset of code point `n`, or s.size() when there are fewer.
std::size_t offset_of(std::string_view s, std::size_t n);
char32_t decode_at(std::string_view s, std::size_t at, int* length);

bool is_space(char32_t c);
bool is_printable(char32_t c);
bool is_alpha(char32_t c);
bool is_decimal(char32_t c);
bool is_digit(char32_t c);
bool is_numeric(char32_t c);
bool is_upper(char32_t c);  // Lu or other uppercase
bool is_lower(char32_t c);
bool is_title(char32_t c);
bool is_word(char32_t c);  // \w of Python's re
bool is_identifier(std::string_view s);

std::string to_upper(std::string_view s);
std::string to_lower(std::string_view s);
std::string to_title(std::string_view s);    // str.title
std::string to_capital(std::string_view s);  // str.capitalize
std::string swap_case(std::string_view s);
std::string fold_case(std::string_view s);

// `chars` null: white space; else as char_set gives it.
std::string_view strip_left(std::string_view s, const std::u32string* chars = nullptr);
std::string_view strip_right(std::string_view s, const std::u32string* chars = nullptr);
std::u32string char_set(std::string_view s);

// As std::string_view's find and rfind, but in linear time whatever the texts are.
std::size_t find_in(std::string_view s, std::string_view what, std::size_t from = 0);
std::size_t rfind_in(std::string_view s, std::string_view what);

std::vector<std::string_view> split_space(std::string_view s, std::int64_t most);
std::vector<std::string_view> split_space_right(std::string_view s, std::int64_t most);
std::vector<std::string_view> split_on(std::string_view s, std::string_view by, std::int64_t most);
std::vector<std::string_view> split_on_right(std::string_view s, std::string_view by,
                                             std::int64_t most);
std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends);

}  // namespace nibble::chat
