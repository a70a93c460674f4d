// tests.cpp: what may stand after `is`.
#include "core/text/chat/builtins.h"
#include "core/text/chat/py_text.h"
#include "core/text/chat/run.h"

namespace nibble::chat {
namespace {

template <Kind K>
Value kind_is(Run&, Args& a) {
  return Value::boolean(a.self.is(K));
}
template <Cmp C>
Value compares(Run& run, Args& a) {
  return Value::boolean(compare(run, C, a.self, a.at[0]));
}
template <bool Want>
Value is_flag(Run&, Args& a) {
  return Value::boolean(a.self.is(Kind::boolean) && a.self.b == Want);
}

Value defined(Run&, Args& a) {
  return Value::boolean(!a.self.is_undefined());
}
Value number(Run&, Args& a) {
  return Value::boolean(a.self.is_number());
}
Value integer(Run&, Args& a) {
  return Value::boolean(a.self.is(Kind::integer) || a.self.is(Kind::big));
}
Value is_iterable(Run&, Args& a) {
  return Value::boolean(iterable(a.self));
}
Value sequence(Run&, Args& a) {
  const Kind k = a.self.kind;
  return Value::boolean(k == Kind::string || k == Kind::list || k == Kind::tuple ||
                        k == Kind::dict || k == Kind::range || k == Kind::undefined);
}
Value callable(Run&, Args& a) {
  const Kind k = a.self.kind;
  return Value::boolean(k == Kind::macro || k == Kind::function || k == Kind::method ||
                        k == Kind::loop || k == Kind::joiner || k == Kind::undefined);
}
Value sameas(Run&, Args& a) {
  return Value::boolean(same_object(a.self, a.at[0]));
}
Value escaped(Run&, Args& a) {
  return Value::boolean(is_markup(a.self));
}
Value contained(Run& run, Args& a) {
  return Value::boolean(contains(run, a.at[0], a.self));
}

bool divides(Run& run, const Value& v, const Value& by) {
  const Value rest = binary(run, Op::mod, v, by);
  return equals(run, rest, Value::integer(0));
}
Value divisibleby(Run& run, Args& a) {
  return Value::boolean(divides(run, a.self, a.at[0]));
}
Value even(Run& run, Args& a) {
  return Value::boolean(divides(run, a.self, Value::integer(2)));
}
Value odd(Run& run, Args& a) {
  return Value::boolean(
      equals(run, binary(run, Op::mod, a.self, Value::integer(2)), Value::integer(1)));
}

Value cased(Run& run, Args& a, const char* method) {
  const Value text = run.text(to_text(run, a.self));
  return run.call_builtin(*find_text_method(method), text, {});
}
Value lower(Run& run, Args& a) {
  return cased(run, a, "islower");
}
Value upper(Run& run, Args& a) {
  return cased(run, a, "isupper");
}

Value is_filter(Run&, Args& a) {
  return Value::boolean(a.self.is_string() && find_filter(text_of(a.self)) != nullptr);
}
Value is_test(Run&, Args& a) {
  return Value::boolean(a.self.is_string() && find_test(text_of(a.self)) != nullptr);
}

constexpr Builtin kTests[] = {
    {"boolean", kind_is<Kind::boolean>},
    {"callable", callable},
    {"defined", defined},
    {"divisibleby", divisibleby, {"num"}, 1},
    {"eq", compares<Cmp::eq>, {"other"}, 1},
    {"equalto", compares<Cmp::eq>, {"other"}, 1},
    {"==", compares<Cmp::eq>, {"other"}, 1},
    {"escaped", escaped},
    {"even", even},
    {"false", is_flag<false>},
    {"filter", is_filter},
    {"float", kind_is<Kind::real>},
    {"ge", compares<Cmp::ge>, {"other"}, 1},
    {">=", compares<Cmp::ge>, {"other"}, 1},
    {"gt", compares<Cmp::gt>, {"other"}, 1},
    {"greaterthan", compares<Cmp::gt>, {"other"}, 1},
    {">", compares<Cmp::gt>, {"other"}, 1},
    {"in", contained, {"seq"}, 1},
    {"integer", integer},
    {"iterable", is_iterable},
    {"le", compares<Cmp::le>, {"other"}, 1},
    {"<=", compares<Cmp::le>, {"other"}, 1},
    {"lower", lower},
    {"lt", compares<Cmp::lt>, {"other"}, 1},
    {"lessthan", compares<Cmp::lt>, {"other"}, 1},
    {"<", compares<Cmp::lt>, {"other"}, 1},
    {"mapping", kind_is<Kind::dict>},
    {"ne", compares<Cmp::ne>, {"other"}, 1},
    {"!=", compares<Cmp::ne>, {"other"}, 1},
    {"none", kind_is<Kind::none>},
    {"number", number},
    {"odd", odd},
    {"sameas", sameas, {"other"}, 1},
    {"sequence", sequence},
    {"string", kind_is<Kind::string>},
    {"test", is_test},
    {"true", is_flag<true>},
    {"undefined", kind_is<Kind::undefined>},
    {"upper", upper},
};

}  // namespace

const Builtin* find_test(std::string_view name) {
  return find_in_table(kTests, name);
}

const Builtin* find_filter(std::string_view name) {
  for (const auto find : {find_text_filter, find_value_filter, find_list_filter, find_select_filter,
                          find_layout_filter, find_markup_filter}) {
    if (const Builtin* def = find(name)) return def;
  }
  return nullptr;
}

}  // namespace nibble::chat
