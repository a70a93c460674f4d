// operators.cpp: arithmetic, comparison and `in`, with Python's rules for mixed types.
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

#include "core/text/chat/py_text.h"
#include "core/text/chat/run.h"

namespace nibble::chat {
namespace {

constexpr const char* kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};
const char* sign(Op op) {
  return kSigns[static_cast<std::size_t>(op)];
}

[[noreturn]] void bad_operands(Run& run, Op op, const Value& a, const Value& b) {
  if (a.is_undefined()) run.use_of_undefined(a);
  if (b.is_undefined()) run.use_of_undefined(b);
  const bool text = op == Op::add && (a.is_string() || b.is_string());
  run.fail(std::string("unsupported operand types for ") + sign(op) + ": " + type_name(a) +
           " and " + type_name(b) + (text ? "; ~ joins any two values as text" : ""));
}

[[noreturn]] void overflow(Run& run) {
  run.fail("integer overflow: the result needs more than 64 bits");
}

double real_of(const Value& v) {
  if (v.is(Kind::real)) return v.d;
  if (v.is(Kind::big)) return std::strtod(text_of(v).c_str(), nullptr);
  return static_cast<double>(v.whole());
}

Value power(Run& run, std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) overflow(run);
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) overflow(run);
  }
  return Value::integer(result);
}

Value whole_arithmetic(Run& run, Op op, std::int64_t a, std::int64_t b) {
  std::int64_t r = 0;
  switch (op) {
    case Op::add:
      if (__builtin_add_overflow(a, b, &r)) overflow(run);
      return Value::integer(r);
    case Op::sub:
      if (__builtin_sub_overflow(a, b, &r)) overflow(run);
      return Value::integer(r);
    case Op::mul:
      if (__builtin_mul_overflow(a, b, &r)) overflow(run);
      return Value::integer(r);
    case Op::div:
      if (b == 0) run.fail("division by zero");
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    case Op::floordiv:
    case Op::mod: {
      if (b == 0) run.fail("integer division or modulo by zero");
      if (b == -1) return op == Op::mod ? Value::integer(0) : whole_arithmetic(run, Op::sub, 0, a);
      std::int64_t quotient = a / b, rest = a % b;
      if (rest != 0 && (rest < 0) != (b < 0)) {
        rest += b;
        --quotient;
      }
      return Value::integer(op == Op::mod ? rest : quotient);
    }
    case Op::pow:
      break;
  }
  if (b >= 0) return power(run, a, b);
  if (a == 0) run.fail("zero cannot be raised to a negative power (division by zero)");
  return Value::real(std::pow(static_cast<double>(a), static_cast<double>(b)));
}

Value real_arithmetic(Run& run, Op op, double a, double b) {
  switch (op) {
    case Op::add:
      return Value::real(a + b);
    case Op::sub:
      return Value::real(a - b);
    case Op::mul:
      return Value::real(a * b);
    case Op::div:
      if (b == 0) run.fail("float division by zero");
      return Value::real(a / b);
    case Op::floordiv:
    case Op::mod: {
      if (b == 0) run.fail("float floor division or modulo by zero");
      double rest = std::fmod(a, b);
      double quotient = (a - rest) / b;
      if (rest != 0) {
        if ((b < 0) != (rest < 0)) {
          rest += b;
          quotient -= 1;
        }
      } else {
        rest = std::copysign(0.0, b);
      }
      if (op == Op::mod) return Value::real(rest);
      if (quotient == 0) return Value::real(std::copysign(0.0, a / b));
      double floor = std::floor(quotient);
      if (quotient - floor > 0.5) floor += 1;
      return Value::real(floor);
    }
    case Op::pow:
      break;
  }
  if (a == 0 && b < 0) run.fail("zero cannot be raised to a negative power (division by zero)");
  const double r = std::pow(a, b);
  if (std::isnan(r) && !std::isnan(a) && !std::isnan(b)) run.fail("the power is not a real number");
  if (std::isinf(r) && std::isfinite(a) && std::isfinite(b)) run.fail("float overflow in **");
  return Value::real(r);
}

Value repeat(Run& run, const Value& v, std::int64_t times) {
  if (v.is_string()) {
    TextBuilder out(run);
    out.fill(text_of(v), times);
    return run.text_like(v, out.take());
  }
  const auto& items = seq_of(v).items;
  std::vector<Value> all;
  if (times > 0 && !items.empty()) {
    const auto most = static_cast<std::int64_t>(run.how.limits.memory_bytes / sizeof(Value));
    if (times > most / static_cast<std::int64_t>(items.size())) {
      run.room(run.how.limits.memory_bytes + 1);
    }
    run.room(static_cast<std::size_t>(times) * items.size() * sizeof(Value));
    all.reserve(items.size() * static_cast<std::size_t>(times));
    for (std::int64_t k = 0; k < times; ++k) all.insert(all.end(), items.begin(), items.end());
  }
  return run.sequence(v.kind, std::move(all));
}

Value add_text(Run& run, const Value& a, const Value& b) {
  TextBuilder out(run);
  const bool markup = is_markup(a) || is_markup(b);
  for (const Value* v : {&a, &b}) {
    out.add(markup && !is_markup(*v) ? escape_html(run, text_of(*v)) : text_of(*v));
  }
  return run.text(out.take(), markup);
}

}  // namespace

Value binary(Run& run, Op op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_whole() && b.is_whole()) return whole_arithmetic(run, op, a.whole(), b.whole());
    const bool real = a.is(Kind::real) || b.is(Kind::real) || op == Op::div;
    if (!real) overflow(run);
    return real_arithmetic(run, op, real_of(a), real_of(b));
  }
  if (op == Op::mod && a.is_string()) {
    return run.text_like(a, format_percent(run, a, b));
  }
  if (op == Op::add) {
    if (a.is_string() && b.is_string()) return add_text(run, a, b);
    if (is_seq(a) && a.kind == b.kind) {
      run.room((seq_of(a).items.size() + seq_of(b).items.size()) * sizeof(Value));
      std::vector<Value> all = seq_of(a).items;
      all.insert(all.end(), seq_of(b).items.begin(), seq_of(b).items.end());
      return run.sequence(a.kind, std::move(all));
    }
  }
  if (op == Op::mul) {
    if ((a.is_string() || is_seq(a)) && b.is_whole()) return repeat(run, a, b.whole());
    if ((b.is_string() || is_seq(b)) && a.is_whole()) return repeat(run, b, a.whole());
  }
  bad_operands(run, op, a, b);
}

Value negate(Run& run, const Value& v) {
  if (v.is_undefined()) run.use_of_undefined(v);
  if (v.is(Kind::real)) return Value::real(-v.d);
  if (v.is_whole()) return whole_arithmetic(run, Op::sub, 0, v.whole());
  if (v.is(Kind::big)) {
    const std::string& digits = text_of(v);
    if (digits == "9223372036854775808")
      return Value::integer(std::numeric_limits<std::int64_t>::min());
    return big_literal(digits[0] == '-' ? digits.substr(1) : "-" + digits);
  }
  run.fail(std::string("unary - needs a number, found ") + type_name(v));
}

bool equals(Run& run, const Value& a, const Value& b) {
  run.step();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::none:
    case Kind::undefined:
      return true;
    case Kind::string:
      run.step(text_of(a).size() / 64);
      return text_of(a) == text_of(b);
    case Kind::list:
    case Kind::tuple: {
      const auto &x = seq_of(a).items, &y = seq_of(b).items;
      if (x.size() != y.size()) return false;
      const Run::Deeper deeper(run);
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (!equals(run, x[i], y[i])) return false;
      }
      return true;
    }
    case Kind::dict: {
      const auto &x = dict_of(a), &y = dict_of(b);
      if (x.items.size() != y.items.size()) return false;
      const Run::Deeper deeper(run);
      for (const auto& [k, v] : x.items) {
        run.step();
        const Value* other = y.find(k);
        if (!other || !equals(run, v, *other)) return false;
      }
      return true;
    }
    case Kind::range: {
      const Range &x = range_of(a), &y = range_of(b);
      return x.size == y.size &&
             (x.size == 0 || (x.start == y.start && (x.size == 1 || x.step == y.step)));
    }
    default:
      return a.ref == b.ref;
  }
}

bool less(Run& run, const Value& a, const Value& b, const char* symbol) {
  run.step();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == -1;
  if (a.is_string() && b.is_string()) {
    run.step(text_of(a).size() / 64);
    return text_of(a) < text_of(b);
  }
  if (is_seq(a) && a.kind == b.kind) {
    const auto &x = seq_of(a).items, &y = seq_of(b).items;
    const Run::Deeper deeper(run);
    for (std::size_t i = 0; i < x.size() && i < y.size(); ++i) {
      if (!equals(run, x[i], y[i])) return less(run, x[i], y[i], symbol);
    }
    return x.size() < y.size();
  }
  if (a.is_undefined()) run.use_of_undefined(a);
  if (b.is_undefined()) run.use_of_undefined(b);
  run.fail(std::string("cannot compare ") + type_name(a) + " " + symbol + " " + type_name(b));
}

bool contains(Run& run, const Value& container, const Value& item) {
  switch (container.kind) {
    case Kind::string:
      if (!item.is_string()) {
        run.fail(std::string("'in' of a string needs a string on the left, found ") +
                 type_name(item));
      }
      run.step(text_of(container).size() / 64);
      return find_in(text_of(container), text_of(item)) != std::string::npos;
    case Kind::dict:
      if (!hashable(item)) run.fail(std::string("unhashable type as a key: ") + type_name(item));
      return dict_of(container).find(item) != nullptr;
    case Kind::list:
    case Kind::tuple:
      for (const Value& v : seq_of(container).items) {
        if (equals(run, v, item)) return true;
      }
      return false;
    case Kind::iterator: {
      Iterator& it = iterator_of(container);
      while (it.at < it.items.size()) {
        if (equals(run, it.items[it.at++], item)) return true;
      }
      return false;
    }
    default:
      for (const Value& v : items_of(run, container)) {
        if (equals(run, v, item)) return true;
      }
      return false;
  }
}

bool compare(Run& run, Cmp op, const Value& a, const Value& b) {
  // With a NaN only != holds.
  const bool ordered = !(a.is_number() && b.is_number() && compare_numbers(a, b) == 2);
  switch (op) {
    case Cmp::eq:
      return equals(run, a, b);
    case Cmp::ne:
      return !equals(run, a, b);
    case Cmp::lt:
      return less(run, a, b, "<");
    case Cmp::gt:
      return less(run, b, a, ">");
    case Cmp::le:
      return ordered && !less(run, b, a, "<=");
    case Cmp::ge:
      return ordered && !less(run, a, b, ">=");
    case Cmp::in:
      return contains(run, b, a);
    case Cmp::not_in:
      return !contains(run, b, a);
  }
  return false;
}

}  // namespace nibble::chat
