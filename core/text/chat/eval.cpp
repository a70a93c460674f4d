// eval.cpp: expressions and calls.
#include <algorithm>

#include "core/text/chat/run.h"

namespace nibble::chat {

Value Constant::eval(Run&) const {
  return value;
}
Value NameExpr::eval(Run& run) const {
  return run.lookup(name);
}

Value SequenceExpr::eval(Run& run) const {
  std::vector<Value> values;
  values.reserve(items.size());
  for (const auto& e : items) values.push_back(run.eval(*e));
  return run.sequence(tuple ? Kind::tuple : Kind::list, std::move(values));
}

Value DictExpr::eval(Run& run) const {
  auto d = std::make_shared<Dict>();
  for (const auto& [k, v] : items) {
    Value key = run.eval(*k);
    if (!hashable(key)) run.fail(std::string("unhashable type as a key: ") + type_name(key));
    d->set(std::move(key), run.eval(*v));
  }
  return run.dict(std::move(d));
}

Value AttributeExpr::eval(Run& run) const {
  return attribute(run, run.eval(*object), name);
}

Value ItemExpr::eval(Run& run) const {
  const Value o = run.eval(*object);
  return item(run, o, run.eval(*index));
}

Value SliceExpr::eval(Run& run) const {
  const auto part = [&](const ExprPtr& e) { return e ? run.eval(*e) : Value::none(); };
  const Value o = run.eval(*object);
  const Value a = part(start), b = part(stop), c = part(step);
  return slice(run, o, a, b, c);
}

Value CallExpr::eval(Run& run) const {
  const Value f = run.eval(*callee);
  return run.call(f, run.arguments(args));
}

Value FilterExpr::eval(Run& run) const {
  return run.filter(def, name, args, input ? run.eval(*input) : run.filter_input);
}

Value TestExpr::eval(Run& run) const {
  const Value v = run.eval(*input);
  if (!def) run.fail("no test named '" + name + "'");
  return run.call_builtin(*def, v, run.arguments(args));
}

Value BinaryExpr::eval(Run& run) const {
  const Value a = run.eval(*left);
  return binary(run, op, a, run.eval(*right));
}

Value UnaryExpr::eval(Run& run) const {
  const Value v = run.eval(*operand);
  if (op == '!') return Value::boolean(!truthy(v));
  if (op == '-') return negate(run, v);
  if (v.is_undefined()) run.use_of_undefined(v);
  if (!v.is_number()) run.fail(std::string("unary + needs a number, found ") + type_name(v));
  return v.is(Kind::boolean) ? Value::integer(v.whole()) : v;
}

Value LogicExpr::eval(Run& run) const {
  Value v = run.eval(*left);
  return truthy(v) == both ? run.eval(*right) : v;
}

Value CompareExpr::eval(Run& run) const {
  Value left = run.eval(*first);
  for (const auto& [op, e] : rest) {
    Value right = run.eval(*e);
    if (!compare(run, op, left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value ConcatExpr::eval(Run& run) const {
  TextBuilder out(run);
  for (const auto& e : items) {
    const Value v = run.eval(*e);
    v.is_string() ? out.add(text_of(v)) : out.add(to_text(run, v));
  }
  return run.text(out.take());
}

Value ConditionalExpr::eval(Run& run) const {
  if (truthy(run.eval(*test))) return run.eval(*yes);
  if (no) return run.eval(*no);
  return run.undefined("the inline if-expression on line " + std::to_string(line) +
                       " evaluated to false and no else section was defined");
}

CallArgs Run::arguments(const Arguments& args) {
  CallArgs out;
  out.positional.reserve(args.positional.size());
  for (const auto& e : args.positional) out.positional.push_back(eval(*e));
  for (const auto& [name, e] : args.named) out.named.emplace_back(name, eval(*e));
  if (args.star) {
    for (Value& v : items_of(*this, eval(*args.star))) out.positional.push_back(std::move(v));
  }
  if (args.star_star) {
    const Value d = eval(*args.star_star);
    if (!d.is(Kind::dict)) fail(std::string("** needs a dict, found ") + type_name(d));
    for (const auto& [k, v] : dict_of(d).items) {
      if (!k.is_string()) fail("keywords must be strings");
      step(1 + out.named.size() / 16);
      for (const auto& [name, old] : out.named) {
        if (name == text_of(k)) fail("the argument '" + name + "' is given twice");
      }
      out.named.emplace_back(text_of(k), v);
    }
  }
  room((out.positional.size() + out.named.size()) * sizeof(Value));
  return out;
}

Value Run::filter(const Builtin* def, const std::string& name, const Arguments& args, Value input) {
  if (!def) fail("no filter named '" + name + "'");
  return call_builtin(*def, std::move(input), arguments(args));
}

Args Run::match(const Builtin& def, Value self, CallArgs args) const {
  Args out;
  out.self = std::move(self);
  out.at.fill(Value::absent());
  std::size_t count = 0;
  while (count < def.params.size() && def.params[count]) ++count;
  const std::string who(def.name);
  for (std::size_t i = 0; i < args.positional.size(); ++i) {
    if (i < count) {
      out.at[i] = std::move(args.positional[i]);
    } else if (def.rest) {
      out.rest.push_back(std::move(args.positional[i]));
    } else {
      fail(who + " takes at most " + std::to_string(count) + " arguments, found " +
           std::to_string(args.positional.size()));
    }
  }
  for (auto& [name, value] : args.named) {
    std::size_t k = 0;
    while (k < count && name != def.params[k]) ++k;
    if (k < count) {
      if (!out.at[k].is_absent()) fail(who + ": the argument '" + name + "' is given twice");
      out.at[k] = std::move(value);
    } else if (def.named) {
      out.named.emplace_back(name, std::move(value));
    } else {
      fail(who + " takes no argument '" + name + "'");
    }
  }
  for (std::size_t k = 0; k < static_cast<std::size_t>(def.required); ++k) {
    if (out.at[k].is_absent()) fail(who + ": the argument '" + def.params[k] + "' is missing");
  }
  return out;
}

Value Run::call_builtin(const Builtin& def, Value self, CallArgs args) {
  step();
  const Deeper deeper(*this);
  Args matched = match(def, std::move(self), std::move(args));
  return def.call(*this, matched);
}

Value Run::call(const Value& callee, CallArgs args, const Value& caller) {
  if (!caller.is_absent() && !callee.is(Kind::macro)) args.named.emplace_back("caller", caller);
  switch (callee.kind) {
    case Kind::macro:
      return call_macro(macro_of(callee), std::move(args), caller);
    case Kind::method:
      return call_builtin(*method_of(callee).def, method_of(callee).self, std::move(args));
    case Kind::function: {
      const auto& f = static_cast<const Function&>(*callee.ref);
      if (f.def) return call_builtin(*f.def, Value(), std::move(args));
      const int back = line;
      Value text = capture([&] {
        enter()->parent = outermost();
        exec(f.block->body);
      });
      line = back;
      return text;
    }
    case Kind::loop:
      return call_loop(*this, callee, std::move(args));
    case Kind::joiner: {
      Joiner& j = joiner_of(callee);
      return text(std::exchange(j.used, true) ? j.separator : std::string());
    }
    case Kind::undefined:
      use_of_undefined(callee);
    default:
      fail(std::string("a ") + type_name(callee) + " cannot be called");
  }
}

Value Run::call_macro(const Macro& macro, CallArgs args, const Value& caller) {
  const Deeper deeper(*this);
  const Procedure& p = *macro.procedure;
  const std::string who = p.name.empty() ? "the call block" : "macro '" + p.name + "'";
  if (!caller.is_absent()) args.named.emplace_back("caller", caller);
  const int back = line;
  Value result = capture([&] {
    scope = macro.closure;
    enter();
    const auto keyword = [&](const std::string& name) {
      for (std::size_t i = 0; i < args.named.size(); ++i) {
        if (args.named[i].first != name) continue;
        Value v = std::move(args.named[i].second);
        args.named.erase(args.named.begin() + static_cast<std::ptrdiff_t>(i));
        return v;
      }
      return Value::absent();
    };
    const std::size_t given = std::min(args.positional.size(), p.params.size());
    const std::size_t first_default = p.params.size() - p.defaults.size();
    bool own_caller = false;
    for (std::size_t i = 0; i < p.params.size(); ++i) {
      const auto& [symbol, name] = p.params[i];
      own_caller |= symbol == kCaller;
      Value v = i < given ? args.positional[i] : keyword(name);
      if (v.is_absent()) {
        v = i >= first_default ? eval(*p.defaults[i - first_default])
                               : undefined("parameter '" + name + "' was not provided");
      }
      assign(symbol, std::move(v));
    }
    if (p.uses_caller && !own_caller) {
      Value v = keyword("caller");
      assign(kCaller, v.is_absent() ? undefined("no caller defined") : std::move(v));
    }
    if (p.uses_kwargs) {
      auto d = std::make_shared<Dict>();
      for (auto& [name, value] : args.named) d->set(text(name), std::move(value));
      assign(kKwargs, dict(std::move(d)));
    } else if (!args.named.empty()) {
      const std::string& name = args.named[0].first;
      fail(name == "caller" ? who + " does not use caller, but was called by a call block"
                            : who + " takes no keyword argument '" + name + "'");
    }
    if (p.uses_varargs) {
      args.positional.erase(args.positional.begin(),
                            args.positional.begin() + static_cast<std::ptrdiff_t>(given));
      assign(kVarargs, tuple(std::move(args.positional)));
    } else if (args.positional.size() > given) {
      fail(who + " takes not more than " + std::to_string(p.params.size()) +
           " argument(s), found " + std::to_string(args.positional.size()));
    }
    exec(p.body);
  });
  line = back;
  return result;
}

}  // namespace nibble::chat
