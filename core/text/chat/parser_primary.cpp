// parser_primary.cpp: what operators are applied to, and the arguments of calls.
#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "core/text/chat/parser.h"
#include "core/text/chat/run.h"

namespace nibble::chat {
namespace {

constexpr std::size_t kMaxDigits = 4300;  // of an integer, as in Python

template <class T>
std::unique_ptr<T> node(int line) {
  return std::make_unique<T>(line);
}

}  // namespace

ExprPtr Parser::number(const Token& t) {
  auto c = node<Constant>(t.line);
  if (t.kind == Tok::real) {
    c->value = Value::real(std::strtod(t.text.c_str(), nullptr));
    return c;
  }
  int base = 10;
  std::string digits = t.text;
  if (digits.size() > 2 && digits[0] == '0' && (digits[1] | 0x20) >= 'a') {
    base = (digits[1] | 0x20) == 'x' ? 16 : (digits[1] | 0x20) == 'o' ? 8 : 2;
    digits.erase(0, 2);
  }
  std::int64_t v = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), v, base);
  if (error == std::errc()) {
    c->value = Value::integer(v);
  } else if (base == 10 && digits.size() <= kMaxDigits) {
    c->value = big_literal(std::move(digits));
  } else {
    fail("the integer is too large", t.line);
  }
  return c;
}

ExprPtr Parser::primary() {
  const Token t = now();
  switch (t.kind) {
    case Tok::name: {
      take();
      auto c = node<Constant>(t.line);
      if (t.text == "true" || t.text == "True") {
        c->value = Value::boolean(true);
      } else if (t.text == "false" || t.text == "False") {
        c->value = Value::boolean(false);
      } else if (t.text == "none" || t.text == "None") {
        c->value = Value::none();
      } else {
        auto e = node<NameExpr>(t.line);
        e->name = symbol(t.text);
        for (Procedure* p : procedures_) {
          p->uses_caller |= e->name == kCaller;
          p->uses_varargs |= e->name == kVarargs;
          p->uses_kwargs |= e->name == kKwargs;
        }
        return e;
      }
      return c;
    }
    case Tok::string: {
      auto c = node<Constant>(t.line);
      std::string text;
      while (is(Tok::string)) text += take().text;
      c->value = literal(std::move(text));
      return c;
    }
    case Tok::integer:
    case Tok::real:
      return number(take());
    case Tok::lparen: {
      take();
      ExprPtr e = tuple(true, {}, true);
      expect(Tok::rparen);
      return e;
    }
    case Tok::lbracket: {
      take();
      auto e = node<SequenceExpr>(t.line);
      int deepest = 0;
      while (!is(Tok::rbracket)) {
        if (!e->items.empty()) {
          expect(Tok::comma);
          if (is(Tok::rbracket)) break;
        }
        e->items.push_back(expression());
        deepest = std::max(deepest, e->items.back()->depth);
      }
      take();
      return done(std::move(e), deepest);
    }
    case Tok::lbrace:
      return dict();
    case Tok::end:
      fail("unexpected end of template, expected an expression");
    default:
      fail("unexpected '" + describe(t) + "', expected an expression");
  }
}

ExprPtr Parser::dict() {
  auto e = node<DictExpr>(take().line);
  int deepest = 0;
  while (!is(Tok::rbrace)) {
    if (!e->items.empty()) {
      expect(Tok::comma);
      if (is(Tok::rbrace)) break;
    }
    ExprPtr key = expression();
    expect(Tok::colon);
    ExprPtr value = expression();
    deepest = std::max({deepest, key->depth, value->depth});
    e->items.emplace_back(std::move(key), std::move(value));
  }
  take();
  return done(std::move(e), deepest);
}

Arguments Parser::arguments(int* depth) {
  expect(Tok::lparen);
  Arguments args;
  const auto deeper = [&](const ExprPtr& e) { *depth = std::max(*depth, e->depth); };
  for (bool first = true; !is(Tok::rparen); first = false) {
    if (!first) {
      expect(Tok::comma);
      if (is(Tok::rparen)) break;
    }
    if (skip(Tok::mul)) {
      if (args.star || args.star_star) fail("invalid arguments of a call");
      deeper(args.star = expression());
    } else if (skip(Tok::pow)) {
      if (args.star_star) fail("invalid arguments of a call");
      deeper(args.star_star = expression());
    } else if (is(Tok::name) && ahead().kind == Tok::assign) {
      if (args.star_star) fail("invalid arguments of a call");
      std::string name = take().text;
      take();
      for (const auto& [other, value] : args.named) {
        if (other == name) fail("the argument '" + name + "' is given twice");
      }
      if (args.named.size() >= 1000) fail("a call with more than 1000 named arguments");
      args.named.emplace_back(std::move(name), expression());
      deeper(args.named.back().second);
    } else {
      if (args.star || args.star_star || !args.named.empty()) fail("invalid arguments of a call");
      args.positional.push_back(expression());
      deeper(args.positional.back());
    }
  }
  take();
  return args;
}

}  // namespace nibble::chat
