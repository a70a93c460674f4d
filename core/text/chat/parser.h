// parser.h: tokens -> Program. Statements are in parser.cpp, expressions in parser_expr.cpp.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/text/chat/ast.h"
#include "core/text/chat/lexer.h"

namespace nibble::chat {

class Parser {
 public:
  Parser(const std::string& source, Program& program);
  void run();

 private:
  // Parsing and evaluation recurse, so both the nesting of the text and that of nodes are limited.
  static constexpr int kMaxNesting = 120;
  static constexpr int kMaxNodeDepth = 300;
  struct Nested {
    explicit Nested(Parser& p) : parser(p) {
      if (++parser.nesting_ > kMaxNesting) {
        parser.fail("nested deeper than " + std::to_string(kMaxNesting) + " levels");
      }
    }
    ~Nested() { --parser.nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    Parser& parser;
  };
  // What holds for the statements of a body.
  struct Place {
    bool in_loop = false;  // break and continue are allowed
    bool soft = false;     // only run on a condition: unknown filters are reported when reached
  };

  [[noreturn]] void fail(const std::string& what, int line = 0) const;
  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  Token take();
  bool is(Tok kind) const { return now().kind == kind; }
  bool is_name(std::string_view word) const { return is(Tok::name) && now().text == word; }
  bool skip(Tok kind);
  bool skip_name(std::string_view word);
  Token expect(Tok kind);
  void expect_name(std::string_view word);
  int symbol(const std::string& name);

  // parser.cpp
  using Words = std::initializer_list<std::string_view>;
  Body body(const std::string& tag, Words ends, Place place);  // stops before the end tag's name
  void end_tag() {
    take();
    expect(Tok::tag_end);
  }
  std::unique_ptr<Stmt> statement();
  std::unique_ptr<Stmt> if_statement(int line);
  std::unique_ptr<Stmt> for_statement(int line);
  std::unique_ptr<Stmt> set_statement(int line);
  std::unique_ptr<Stmt> with_statement(int line);
  std::unique_ptr<Stmt> macro_statement(int line);
  std::unique_ptr<Stmt> call_statement(int line);
  std::unique_ptr<Stmt> filter_statement(int line);
  std::unique_ptr<Stmt> block_statement(int line);
  std::unique_ptr<Stmt> generation_statement(int line);
  std::unique_ptr<Stmt> autoescape_statement(int line);
  std::unique_ptr<Stmt> jump_statement(int line, const std::string& tag);
  std::unique_ptr<Stmt> loading_statement(int line, const std::string& tag);
  void signature(Procedure& p);
  void procedure_body(Procedure& p, const std::string& tag, std::string_view end);
  Target target(Words ends);
  Target one_target();

  // parser_expr.cpp
  ExprPtr expression(bool with_condition = true);
  ExprPtr tuple(bool with_condition, Words ends, bool in_parentheses);
  ExprPtr logic_or();
  ExprPtr logic_and();
  ExprPtr logic_not();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concat();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filter);
  ExprPtr primary();
  ExprPtr postfix(ExprPtr e);
  ExprPtr filters_and_tests(ExprPtr e);
  ExprPtr filter_chain(ExprPtr e, bool first_without_pipe);
  ExprPtr test(ExprPtr e);
  ExprPtr subscript(ExprPtr e);
  ExprPtr brackets(ExprPtr e);
  ExprPtr call(ExprPtr e);
  ExprPtr dict();
  ExprPtr number(const Token& t);
  Arguments arguments(int* depth);
  std::string dotted_name();
  template <class T>
  ExprPtr binary(Op op, ExprPtr left, T right, int line);
  ExprPtr done(ExprPtr e, std::initializer_list<const Expr*> parts);
  ExprPtr done(ExprPtr e, int deepest);

  Program& program_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
  Place place_;
  std::unordered_map<std::string, int> symbols_;
  std::vector<Procedure*> procedures_;  // the macros around this place, innermost last
  std::unordered_map<std::string, int> block_names_;
};

}  // namespace nibble::chat
