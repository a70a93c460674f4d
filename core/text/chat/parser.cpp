#include "core/text/chat/parser.h"

#include <algorithm>

#include "core/text/chat/py_text.h"
#include "core/text/chat/run.h"
#include "core/text/chat/source_limit.h"

namespace nibble::chat {

std::shared_ptr<const Program> parse(const std::string& source, std::string name) {
  auto program = std::make_shared<Program>();
  program->name = std::move(name);
  if (source.size() > kLargestTemplate) {
    syntax_error(program->name, 1,
                 "a template of " + std::to_string(source.size()) + " bytes, at most " +
                     std::to_string(kLargestTemplate) + " are read");
  }
  if (!valid_utf8(source)) syntax_error(program->name, 1, "the template is not valid UTF-8");
  Parser(normalize_newlines(source), *program).run();
  return program;
}

Parser::Parser(const std::string& source, Program& program)
    : program_(program), tokens_(tokenize(source, program.name)) {
  for (const char* name : {"loop", "caller", "varargs", "kwargs", "self"}) symbol(name);
}

void Parser::run() {
  program_.body = body("", {}, {});
}

void Parser::fail(const std::string& what, int line) const {
  syntax_error(program_.name, line ? line : now().line, what);
}

Token Parser::take() {
  Token t = tokens_[at_];
  if (t.kind != Tok::end) ++at_;
  return t;
}

bool Parser::skip(Tok kind) {
  if (!is(kind)) return false;
  take();
  return true;
}

bool Parser::skip_name(std::string_view word) {
  if (!is_name(word)) return false;
  take();
  return true;
}

Token Parser::expect(Tok kind) {
  if (is(kind)) return take();
  if (is(Tok::end)) {
    fail(std::string("unexpected end of template, expected '") + describe(kind) + "'");
  }
  fail(std::string("expected '") + describe(kind) + "', found '" + describe(now()) + "'");
}

void Parser::expect_name(std::string_view word) {
  if (!skip_name(word)) {
    fail("expected '" + std::string(word) + "', found '" + describe(now()) + "'");
  }
}

int Parser::symbol(const std::string& name) {
  const auto [it, fresh] = symbols_.emplace(name, static_cast<int>(program_.symbols.size()));
  if (fresh) program_.symbols.push_back(name);
  return it->second;
}

Body Parser::body(const std::string& tag, Words ends, Place place) {
  const Nested nested(*this);
  const Place outer = place_;
  place_ = place;
  Body out;
  for (;;) {
    const Token t = take();
    if (t.kind == Tok::data) {
      auto s = std::make_unique<DataStmt>(t.line);
      s->text = t.text;
      out.push_back(std::move(s));
    } else if (t.kind == Tok::output_begin) {
      auto e = tuple(true, {}, false);
      auto s = std::make_unique<OutputStmt>(e->line);
      s->values.push_back(std::move(e));
      expect(Tok::output_end);
      out.push_back(std::move(s));
    } else if (t.kind == Tok::tag_begin) {
      if (is(Tok::name) && std::find(ends.begin(), ends.end(), now().text) != ends.end()) break;
      out.push_back(statement());
      expect(Tok::tag_end);
    } else {
      if (tag.empty()) break;
      std::string wanted;
      for (const auto& word : ends)
        wanted += (wanted.empty() ? "'" : " or '") + std::string(word) + "'";
      fail("unexpected end of template, the block '" + tag + "' needs " + wanted);
    }
  }
  place_ = outer;
  return out;
}

std::unique_ptr<Stmt> Parser::statement() {
  if (!is(Tok::name)) fail("expected the name of a tag, found '" + describe(now()) + "'");
  const Token t = take();
  const int line = t.line;
  if (t.text == "if") return if_statement(line);
  if (t.text == "for") return for_statement(line);
  if (t.text == "set") return set_statement(line);
  if (t.text == "with") return with_statement(line);
  if (t.text == "macro") return macro_statement(line);
  if (t.text == "call") return call_statement(line);
  if (t.text == "filter") return filter_statement(line);
  if (t.text == "block") return block_statement(line);
  if (t.text == "generation") return generation_statement(line);
  if (t.text == "autoescape") return autoescape_statement(line);
  if (t.text == "break" || t.text == "continue") return jump_statement(line, t.text);
  if (t.text == "include" || t.text == "import" || t.text == "from" || t.text == "extends") {
    return loading_statement(line, t.text);
  }
  if (t.text == "print") {
    auto s = std::make_unique<OutputStmt>(line);
    while (!is(Tok::tag_end)) {
      if (!s->values.empty()) expect(Tok::comma);
      s->values.push_back(expression());
    }
    return s;
  }
  fail("unknown tag '" + t.text + "'", line);
}

std::unique_ptr<Stmt> Parser::if_statement(int line) {
  auto s = std::make_unique<IfStmt>(line);
  const Place inside{place_.in_loop, true};
  for (int branch_line = line;;) {
    IfStmt::Branch b{branch_line, tuple(false, {}, false), {}};
    expect(Tok::tag_end);
    b.body = body("if", {"elif", "else", "endif"}, inside);
    s->branches.push_back(std::move(b));
    const Token end = take();
    if (end.text == "elif") {
      branch_line = end.line;
      continue;
    }
    if (end.text == "else") {
      expect(Tok::tag_end);
      s->otherwise = body("if", {"endif"}, inside);
      take();
    }
    return s;
  }
}

std::unique_ptr<Stmt> Parser::for_statement(int line) {
  auto s = std::make_unique<ForStmt>(line);
  s->target = target({"in"});
  expect_name("in");
  s->iterable = tuple(false, {"recursive"}, false);
  if (skip_name("if")) s->test = expression();
  s->recursive = skip_name("recursive");
  expect(Tok::tag_end);
  s->body = body("for", {"endfor", "else"}, {true, false});
  if (take().text == "else") {
    expect(Tok::tag_end);
    s->otherwise = body("for", {"endfor"}, {place_.in_loop, false});
    take();
  }
  return s;
}

Target Parser::one_target() {
  Target t;
  if (is(Tok::lparen)) {
    take();
    t = target({});
    expect(Tok::rparen);
    return t;
  }
  if (!is(Tok::name)) fail("cannot assign to '" + describe(now()) + "'");
  const Token name = take();
  for (const char* constant : {"true", "false", "none", "True", "False", "None"}) {
    if (name.text == constant) fail("cannot assign to '" + name.text + "'", name.line);
  }
  t.name = symbol(name.text);
  if (skip(Tok::dot)) {
    t.is = Target::Is::attribute;
    t.attribute = expect(Tok::name).text;
  }
  return t;
}

Target Parser::target(Words ends) {
  const Nested nested(*this);
  Target first = one_target();
  if (!is(Tok::comma)) return first;
  Target all;
  all.is = Target::Is::tuple;
  all.items.push_back(std::move(first));
  while (skip(Tok::comma)) {
    const bool over =
        is(Tok::tag_end) || is(Tok::assign) || is(Tok::rparen) ||
        (is(Tok::name) && std::find(ends.begin(), ends.end(), now().text) != ends.end());
    if (over) break;
    all.items.push_back(one_target());
  }
  return all;
}

std::unique_ptr<Stmt> Parser::set_statement(int line) {
  auto s = std::make_unique<SetStmt>(line);
  s->target = target({});
  if (skip(Tok::assign)) {
    s->value = tuple(true, {}, false);
    return s;
  }
  if (is(Tok::pipe)) s->filter = filter_chain(nullptr, false);
  expect(Tok::tag_end);
  s->body = body("set", {"endset"}, {place_.in_loop, false});
  take();
  return s;
}

std::unique_ptr<Stmt> Parser::with_statement(int line) {
  auto s = std::make_unique<WithStmt>(line);
  while (!is(Tok::tag_end)) {
    if (!s->values.empty()) expect(Tok::comma);
    Target t = one_target();
    expect(Tok::assign);
    s->values.emplace_back(std::move(t), expression());
  }
  expect(Tok::tag_end);
  s->body = body("with", {"endwith"}, {place_.in_loop, false});
  take();
  return s;
}

void Parser::signature(Procedure& p) {
  expect(Tok::lparen);
  while (!is(Tok::rparen)) {
    if (!p.params.empty()) expect(Tok::comma);
    const Token name = expect(Tok::name);
    p.params.emplace_back(symbol(name.text), name.text);
    if (skip(Tok::assign)) {
      p.defaults.push_back(expression());
    } else if (!p.defaults.empty()) {
      fail("the parameter '" + name.text + "' has no default but follows one that has");
    }
  }
  take();
}

void Parser::procedure_body(Procedure& p, const std::string& tag, std::string_view end) {
  expect(Tok::tag_end);
  procedures_.push_back(&p);
  p.body = body(tag, {end}, {false, false});
  procedures_.pop_back();
  take();
}

std::unique_ptr<Stmt> Parser::macro_statement(int line) {
  auto s = std::make_unique<MacroStmt>(line);
  s->procedure.name = expect(Tok::name).text;
  s->name = symbol(s->procedure.name);
  signature(s->procedure);
  procedure_body(s->procedure, "macro", "endmacro");
  return s;
}

std::unique_ptr<Stmt> Parser::call_statement(int line) {
  auto s = std::make_unique<CallStmt>(line);
  if (is(Tok::lparen)) signature(s->procedure);
  ExprPtr e = expression();
  if (!dynamic_cast<CallExpr*>(e.get())) fail("expected a call of a macro", line);
  s->call.reset(static_cast<CallExpr*>(e.release()));
  procedure_body(s->procedure, "call", "endcall");
  return s;
}

std::unique_ptr<Stmt> Parser::filter_statement(int line) {
  auto s = std::make_unique<FilterStmt>(line);
  s->filter = filter_chain(nullptr, true);
  expect(Tok::tag_end);
  s->body = body("filter", {"endfilter"}, {place_.in_loop, false});
  take();
  return s;
}

std::unique_ptr<Stmt> Parser::block_statement(int line) {
  auto s = std::make_unique<BlockStmt>(line);
  s->name = expect(Tok::name).text;
  if (!block_names_.emplace(s->name, line).second) {
    fail("block '" + s->name + "' defined twice", line);
  }
  s->scoped = skip_name("scoped");
  if (skip_name("required"))
    fail("block '" + s->name + "' is required: templates have no parents here");
  expect(Tok::tag_end);
  s->body = body("block", {"endblock"}, {false, false});
  take();
  skip_name(s->name);
  program_.blocks.push_back(s.get());
  return s;
}

std::unique_ptr<Stmt> Parser::generation_statement(int line) {
  auto s = std::make_unique<GenerationStmt>(line);
  expect(Tok::tag_end);
  s->body = body("generation", {"endgeneration"}, {false, false});
  take();
  return s;
}

std::unique_ptr<Stmt> Parser::autoescape_statement(int line) {
  auto s = std::make_unique<ScopeStmt>(line);
  const ExprPtr e = expression();
  const auto* flag = dynamic_cast<const Constant*>(e.get());
  if (!flag || truthy(flag->value)) fail("only {% autoescape false %} is supported", line);
  expect(Tok::tag_end);
  s->body = body("autoescape", {"endautoescape"}, {place_.in_loop, false});
  take();
  return s;
}

std::unique_ptr<Stmt> Parser::jump_statement(int line, const std::string& tag) {
  if (!place_.in_loop) fail("'" + tag + "' outside of a loop", line);
  auto s = std::make_unique<JumpStmt>(line);
  s->flow = tag == "break" ? Flow::leave_loop : Flow::next_turn;
  return s;
}

std::unique_ptr<Stmt> Parser::loading_statement(int line, const std::string& tag) {
  auto s = std::make_unique<FailStmt>(line);
  s->what = "'" + tag + "' needs another template, and a chat template stands alone";
  while (!is(Tok::tag_end) && !is(Tok::end)) take();
  return s;
}

}  // namespace nibble::chat
