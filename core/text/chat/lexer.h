// lexer.h: template source -> tokens, with Jinja's white space control applied to the text between.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nibble::chat {

enum class Tok : unsigned char {
  data,
  output_begin,
  output_end,
  tag_begin,
  tag_end,
  name,
  string,
  integer,
  real,
  add,
  sub,
  div,
  floordiv,
  mul,
  mod,
  pow,
  tilde,
  lbracket,
  rbracket,
  lparen,
  rparen,
  lbrace,
  rbrace,
  eq,
  ne,
  gt,
  ge,
  lt,
  le,
  assign,
  dot,
  colon,
  pipe,
  comma,
  semicolon,
  end,
};

struct Token {
  Tok kind;
  int line;
  std::string text;  // data, name, digits, or the value of a string literal
};

const char* describe(Tok kind);            // "name", "end of statement block", ...
std::string describe(const Token& token);  // the text of a name, else its kind

// Throws Error(bad_file) `name: line N: what`.
std::vector<Token> tokenize(std::string_view source, const std::string& name);

// Line ends become \n and one at the end is dropped.
std::string normalize_newlines(std::string_view source);

[[noreturn]] void syntax_error(const std::string& name, int line, const std::string& what);

}  // namespace nibble::chat
