#include "core/text/chat/value.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>

#include "core/text/chat/py_text.h"

namespace nibble::chat {
namespace {

constexpr std::size_t kIndexFrom = 12;  // entries from which a dict keeps a sorted index

double as_double(const Value& v) {
  if (v.is(Kind::real)) return v.d;
  if (v.is(Kind::big)) return std::strtod(text_of(v).c_str(), nullptr);
  return static_cast<double>(v.whole());
}

int compare_big(const std::string& a, const std::string& b) {
  const bool na = a[0] == '-', nb = b[0] == '-';
  if (na != nb) return na ? -1 : 1;
  int c = a.size() != b.size() ? (a.size() < b.size() ? -1 : 1) : a.compare(b);
  c = c < 0 ? -1 : c > 0 ? 1 : 0;
  return na ? -c : c;
}

int key_rank(const Value& v) {
  if (v.is(Kind::none)) return 0;
  if (v.is_number()) return 1;
  if (v.is_string()) return 2;
  if (v.is(Kind::tuple)) return 3;
  return 4;
}

int compare_keys(const Value& a, const Value& b) {
  const int ra = key_rank(a), rb = key_rank(b);
  if (ra != rb) return ra < rb ? -1 : 1;
  switch (ra) {
    case 0:
      return 0;
    case 1: {
      const bool na = a.is(Kind::real) && std::isnan(a.d), nb = b.is(Kind::real) && std::isnan(b.d);
      if (na || nb) return na == nb ? 0 : (na ? -1 : 1);
      return compare_numbers(a, b);
    }
    case 2:
      return text_of(a).compare(text_of(b));
    case 3: {
      const auto &x = seq_of(a).items, &y = seq_of(b).items;
      for (std::size_t i = 0; i < x.size() && i < y.size(); ++i) {
        if (const int c = compare_keys(x[i], y[i])) return c;
      }
      return x.size() == y.size() ? 0 : (x.size() < y.size() ? -1 : 1);
    }
    default:
      if (a.ref == b.ref) return 0;
      return std::less<>()(a.ref.get(), b.ref.get()) ? -1 : 1;
  }
}

}  // namespace

bool KeyLess::operator()(const Value& a, const Value& b) const {
  return compare_keys(a, b) < 0;
}

const Value* Dict::find(const Value& key) const {
  if (!index.empty()) {
    const auto it = index.find(key);
    return it == index.end() ? nullptr : &items[it->second].second;
  }
  for (const auto& [k, v] : items) {
    if (compare_keys(k, key) == 0) return &v;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  if (!index.empty()) return find(literal(std::string(key)));
  for (const auto& [k, v] : items) {
    if (k.is_string() && text_of(k) == key) return &v;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  if (const Value* old = find(key)) {
    *const_cast<Value*>(old) = std::move(value);
    return;
  }
  items.emplace_back(std::move(key), std::move(value));
  if (items.size() == kIndexFrom) {
    for (std::size_t i = 0; i < items.size(); ++i) index.emplace(items[i].first, i);
  } else if (items.size() > kIndexFrom) {
    index.emplace(items.back().first, items.size() - 1);
  }
}

int compare_numbers(const Value& a, const Value& b) {
  if (a.is_whole() && b.is_whole()) {
    return a.whole() < b.whole() ? -1 : a.whole() > b.whole() ? 1 : 0;
  }
  if (a.is(Kind::big) && b.is(Kind::big)) return compare_big(text_of(a), text_of(b));
  if (a.is(Kind::big) && b.is_whole()) return text_of(a)[0] == '-' ? -1 : 1;
  if (b.is(Kind::big) && a.is_whole()) return text_of(b)[0] == '-' ? 1 : -1;
  const double x = as_double(a), y = as_double(b);
  if (std::isnan(x) || std::isnan(y)) return 2;
  if (x != y || a.is(Kind::big) || b.is(Kind::big)) return x < y ? -1 : x > y ? 1 : 0;
  // Equal as doubles: an integer beyond 2^53 may still differ from the real one.
  if (std::abs(x) >= 9.3e18) return a.is(Kind::real) ? (x > 0 ? 1 : -1) : (x > 0 ? -1 : 1);
  const auto i = a.is_whole() ? a.whole() : static_cast<std::int64_t>(x);
  const auto j = b.is_whole() ? b.whole() : static_cast<std::int64_t>(y);
  return i < j ? -1 : i > j ? 1 : 0;
}

const char* type_name(const Value& v) {
  switch (v.kind) {
    case Kind::absent:
    case Kind::undefined:
      return "Undefined";
    case Kind::none:
      return "NoneType";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
    case Kind::big:
      return "int";
    case Kind::real:
      return "float";
    case Kind::string:
      return str_of(v).markup ? "Markup" : "str";
    case Kind::list:
      return "list";
    case Kind::tuple:
      return seq_of(v).group ? "_GroupTuple" : "tuple";
    case Kind::dict:
      return "dict";
    case Kind::range:
      return "range";
    case Kind::view:
      return view_of(v).what == ViewOf::keys     ? "dict_keys"
             : view_of(v).what == ViewOf::values ? "dict_values"
                                                 : "dict_items";
    case Kind::iterator:
      return "generator";
    case Kind::name_space:
      return "Namespace";
    case Kind::macro:
      return "Macro";
    case Kind::function:
      return "function";
    case Kind::method:
      return "builtin_function_or_method";
    case Kind::loop:
      return "LoopContext";
    case Kind::cycler:
      return "Cycler";
    case Kind::joiner:
      return "Joiner";
    case Kind::self:
      return "TemplateReference";
  }
  return "object";
}

bool truthy(const Value& v) {
  switch (v.kind) {
    case Kind::absent:
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
      return v.b;
    case Kind::integer:
      return v.i != 0;
    case Kind::real:
      return v.d != 0;
    case Kind::string:
      return !text_of(v).empty();
    case Kind::list:
    case Kind::tuple:
      return !seq_of(v).items.empty();
    case Kind::dict:
      return !dict_of(v).items.empty();
    case Kind::view:
      return !view_of(v).dict->items.empty();
    case Kind::range:
      return range_of(v).size != 0;
    default:
      return true;
  }
}

bool same_object(const Value& a, const Value& b) {
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::none:
      return true;
    case Kind::boolean:
      return a.b == b.b;
    case Kind::integer:
      return a.i == b.i;  // small integers are one object in Python
    case Kind::real:
      return a.d == b.d;
    case Kind::string:
      return a.ref == b.ref || text_of(a) == text_of(b);
    default:
      return a.ref == b.ref && a.ref != nullptr;
  }
}

bool hashable(const Value& v) {
  if (v.is(Kind::list) || v.is(Kind::dict)) return false;
  if (!v.is(Kind::tuple)) return true;
  const auto& items = seq_of(v).items;
  return std::all_of(items.begin(), items.end(), [](const Value& x) { return hashable(x); });
}

int depth_of(const Value& v) {
  return v.ref && !v.is(Kind::name_space) ? v.ref->depth : 0;
}

Value literal(std::string text) {
  auto s = std::make_shared<Str>();
  s->points = count_points(text);
  s->text = std::move(text);
  return Value(Kind::string, std::move(s));
}

Value big_literal(std::string digits) {
  Value v = literal(std::move(digits));
  v.kind = Kind::big;
  return v;
}

}  // namespace nibble::chat
