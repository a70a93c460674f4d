// parser_expr.cpp: expressions, from the loosest operator to the tightest.
#include <algorithm>
#include <utility>

#include "core/text/chat/parser.h"
#include "core/text/chat/run.h"

namespace nibble::chat {
namespace {

template <class T>
std::unique_ptr<T> node(int line) {
  return std::make_unique<T>(line);
}

}  // namespace

// Every node passes through here: its depth is limited, as destructors and evaluation recurse.
ExprPtr Parser::done(ExprPtr e, int deepest) {
  e->depth = deepest + 1;
  if (e->depth > kMaxNodeDepth) {
    fail("an expression of more than " + std::to_string(kMaxNodeDepth) + " levels", e->line);
  }
  return e;
}

ExprPtr Parser::done(ExprPtr e, std::initializer_list<const Expr*> parts) {
  int deepest = 0;
  for (const Expr* p : parts) deepest = std::max(deepest, p ? p->depth : 0);
  return done(std::move(e), deepest);
}

ExprPtr Parser::expression(bool with_condition) {
  const Nested nested(*this);
  if (!with_condition) return logic_or();
  const int line = now().line;
  ExprPtr e = logic_or();
  while (is_name("if")) {
    take();
    auto c = node<ConditionalExpr>(line);
    const bool outer = std::exchange(place_.soft, true);
    c->yes = std::move(e);
    c->test = logic_or();
    if (skip_name("else")) c->no = expression();
    place_.soft = outer;
    const std::initializer_list<const Expr*> parts = {c->yes.get(), c->test.get(), c->no.get()};
    e = done(std::move(c), parts);
  }
  return e;
}

ExprPtr Parser::tuple(bool with_condition, Words ends, bool in_parentheses) {
  const int line = now().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  for (;;) {
    if (!items.empty()) expect(Tok::comma);
    if (is(Tok::output_end) || is(Tok::tag_end) || is(Tok::rparen) ||
        (is(Tok::name) && std::find(ends.begin(), ends.end(), now().text) != ends.end())) {
      break;
    }
    items.push_back(expression(with_condition));
    if (!is(Tok::comma)) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple && !in_parentheses) fail("expected an expression, found '" + describe(now()) + "'");
  auto e = node<SequenceExpr>(line);
  e->tuple = true;
  e->items = std::move(items);
  int deepest = 0;
  for (const auto& i : e->items) deepest = std::max(deepest, i->depth);
  return done(std::move(e), deepest);
}

ExprPtr Parser::logic_or() {
  const int line = now().line;
  ExprPtr left = logic_and();
  while (skip_name("or")) {
    auto e = node<LogicExpr>(line);
    e->left = std::move(left);
    e->right = logic_and();
    const std::initializer_list<const Expr*> parts = {e->left.get(), e->right.get()};
    left = done(std::move(e), parts);
  }
  return left;
}

ExprPtr Parser::logic_and() {
  const int line = now().line;
  ExprPtr left = logic_not();
  while (skip_name("and")) {
    auto e = node<LogicExpr>(line);
    e->both = true;
    e->left = std::move(left);
    e->right = logic_not();
    const std::initializer_list<const Expr*> parts = {e->left.get(), e->right.get()};
    left = done(std::move(e), parts);
  }
  return left;
}

ExprPtr Parser::logic_not() {
  if (!is_name("not")) return comparison();
  const Nested nested(*this);
  auto e = node<UnaryExpr>(take().line);
  e->op = '!';
  e->operand = logic_not();
  const Expr* operand = e->operand.get();
  return done(std::move(e), {operand});
}

ExprPtr Parser::comparison() {
  const int line = now().line;
  ExprPtr first = sum();
  std::vector<std::pair<Cmp, ExprPtr>> rest;
  int deepest = first->depth;
  for (;;) {
    Cmp op;
    switch (now().kind) {
      case Tok::eq:
        op = Cmp::eq;
        break;
      case Tok::ne:
        op = Cmp::ne;
        break;
      case Tok::lt:
        op = Cmp::lt;
        break;
      case Tok::le:
        op = Cmp::le;
        break;
      case Tok::gt:
        op = Cmp::gt;
        break;
      case Tok::ge:
        op = Cmp::ge;
        break;
      default:
        if (is_name("in")) {
          op = Cmp::in;
        } else if (is_name("not") && ahead().kind == Tok::name && ahead().text == "in") {
          op = Cmp::not_in;
          take();
        } else {
          if (rest.empty()) return first;
          auto e = node<CompareExpr>(line);
          e->first = std::move(first);
          e->rest = std::move(rest);
          return done(std::move(e), deepest);
        }
    }
    take();
    rest.emplace_back(op, sum());
    deepest = std::max(deepest, rest.back().second->depth);
  }
}

template <class T>
ExprPtr Parser::binary(Op op, ExprPtr left, T right, int line) {
  take();
  auto e = node<BinaryExpr>(line);
  e->op = op;
  e->left = std::move(left);
  e->right = right();
  const std::initializer_list<const Expr*> parts = {e->left.get(), e->right.get()};
  return done(std::move(e), parts);
}

ExprPtr Parser::sum() {
  const int line = now().line;
  ExprPtr left = concat();
  while (is(Tok::add) || is(Tok::sub)) {
    left = binary(
        is(Tok::add) ? Op::add : Op::sub, std::move(left), [&] { return concat(); }, line);
  }
  return left;
}

ExprPtr Parser::concat() {
  const int line = now().line;
  ExprPtr first = product();
  if (!is(Tok::tilde)) return first;
  auto e = node<ConcatExpr>(line);
  int deepest = first->depth;
  e->items.push_back(std::move(first));
  while (skip(Tok::tilde)) {
    e->items.push_back(product());
    deepest = std::max(deepest, e->items.back()->depth);
  }
  return done(std::move(e), deepest);
}

ExprPtr Parser::product() {
  const int line = now().line;
  ExprPtr left = power();
  for (;;) {
    const Op op = is(Tok::mul)        ? Op::mul
                  : is(Tok::div)      ? Op::div
                  : is(Tok::floordiv) ? Op::floordiv
                                      : Op::mod;
    if (op == Op::mod && !is(Tok::mod)) return left;
    left = binary(
        op, std::move(left), [&] { return power(); }, line);
  }
}

ExprPtr Parser::power() {  // from the left, as Jinja has it
  const int line = now().line;
  ExprPtr left = unary(true);
  while (is(Tok::pow))
    left = binary(
        Op::pow, std::move(left), [&] { return unary(true); }, line);
  return left;
}

ExprPtr Parser::unary(bool with_filter) {
  ExprPtr e;
  if (is(Tok::sub) || is(Tok::add)) {
    const Nested nested(*this);
    auto u = node<UnaryExpr>(now().line);
    u->op = is(Tok::sub) ? '-' : '+';
    take();
    u->operand = unary(false);
    const Expr* operand = u->operand.get();
    e = done(std::move(u), {operand});
  } else {
    e = primary();
  }
  e = postfix(std::move(e));
  return with_filter ? filters_and_tests(std::move(e)) : std::move(e);
}

ExprPtr Parser::postfix(ExprPtr e) {
  for (;;) {
    if (is(Tok::dot) || is(Tok::lbracket)) {
      e = subscript(std::move(e));
    } else if (is(Tok::lparen)) {
      e = call(std::move(e));
    } else {
      return e;
    }
  }
}

ExprPtr Parser::filters_and_tests(ExprPtr e) {
  for (;;) {
    if (is(Tok::pipe)) {
      e = filter_chain(std::move(e), false);
    } else if (is_name("is")) {
      e = test(std::move(e));
    } else if (is(Tok::lparen)) {
      e = call(std::move(e));
    } else {
      return e;
    }
  }
}

ExprPtr Parser::subscript(ExprPtr e) {
  const Token t = take();
  if (t.kind == Tok::lbracket) return brackets(std::move(e));
  const Expr* object = e.get();
  const Token name = take();
  if (name.kind == Tok::name) {
    auto a = node<AttributeExpr>(t.line);
    a->object = std::move(e);
    a->name = literal(name.text);
    return done(std::move(a), {object});
  }
  if (name.kind != Tok::integer) fail("expected a name or a number after '.'", name.line);
  auto i = node<ItemExpr>(t.line);
  i->object = std::move(e);
  i->index = number(name);
  return done(std::move(i), {object});
}

ExprPtr Parser::brackets(ExprPtr e) {
  const int line = now().line;
  std::vector<ExprPtr> parts;
  bool sliced = false;
  if (is(Tok::colon)) {
    parts.push_back(nullptr);
  } else {
    parts.push_back(expression());
  }
  while (is(Tok::colon) && parts.size() < 3) {
    take();
    sliced = true;
    const bool empty = is(Tok::colon) || is(Tok::rbracket) || is(Tok::comma);
    parts.push_back(empty ? nullptr : expression());
  }
  int deepest = e->depth;
  for (const auto& p : parts) deepest = std::max(deepest, p ? p->depth : 0);
  if (sliced) {
    expect(Tok::rbracket);
    parts.resize(3);
    auto s = node<SliceExpr>(line);
    s->object = std::move(e);
    s->start = std::move(parts[0]);
    s->stop = std::move(parts[1]);
    s->step = std::move(parts[2]);
    return done(std::move(s), deepest);
  }
  auto i = node<ItemExpr>(line);
  i->object = std::move(e);
  if (is(Tok::comma)) {  // a tuple as the key
    auto key = node<SequenceExpr>(line);
    key->tuple = true;
    key->items.push_back(std::move(parts[0]));
    while (skip(Tok::comma)) {
      key->items.push_back(expression());
      deepest = std::max(deepest, key->items.back()->depth);
    }
    i->index = done(std::move(key), deepest);
    ++deepest;
  } else {
    i->index = std::move(parts[0]);
  }
  expect(Tok::rbracket);
  return done(std::move(i), deepest);
}

ExprPtr Parser::call(ExprPtr e) {
  auto c = node<CallExpr>(now().line);
  int deepest = e->depth;
  c->callee = std::move(e);
  c->args = arguments(&deepest);
  return done(std::move(c), deepest);
}

std::string Parser::dotted_name() {
  std::string name = expect(Tok::name).text;
  while (skip(Tok::dot)) (name += '.') += expect(Tok::name).text;
  return name;
}

ExprPtr Parser::filter_chain(ExprPtr e, bool first_without_pipe) {
  while (first_without_pipe || is(Tok::pipe)) {
    if (!first_without_pipe) take();
    first_without_pipe = false;
    auto f = node<FilterExpr>(now().line);
    f->name = dotted_name();
    f->def = find_filter(f->name);
    if (!f->def && !place_.soft) fail("no filter named '" + f->name + "'", f->line);
    int deepest = e ? e->depth : 0;
    f->input = std::move(e);
    if (is(Tok::lparen)) f->args = arguments(&deepest);
    e = done(std::move(f), deepest);
  }
  return e;
}

ExprPtr Parser::test(ExprPtr e) {
  auto t = node<TestExpr>(take().line);
  const bool negated = skip_name("not");
  const int line = t->line;
  t->name = dotted_name();
  t->def = find_test(t->name);
  if (!t->def && !place_.soft) fail("no test named '" + t->name + "'", line);
  int deepest = e->depth;
  t->input = std::move(e);
  const Tok k = now().kind;
  if (k == Tok::lparen) {
    t->args = arguments(&deepest);
  } else if ((k == Tok::name && !is_name("else") && !is_name("or") && !is_name("and")) ||
             k == Tok::string || k == Tok::integer || k == Tok::real || k == Tok::lbracket ||
             k == Tok::lbrace) {
    if (is_name("is")) fail("tests cannot be chained with 'is'");
    ExprPtr arg = postfix(primary());
    deepest = std::max(deepest, arg->depth);
    t->args.positional.push_back(std::move(arg));
  }
  ExprPtr out = done(std::move(t), deepest);
  if (!negated) return out;
  auto n = node<UnaryExpr>(line);
  n->op = '!';
  n->operand = std::move(out);
  const Expr* operand = n->operand.get();
  return done(std::move(n), {operand});
}

}  // namespace nibble::chat
