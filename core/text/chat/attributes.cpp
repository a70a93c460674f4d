// attributes.cpp: object.name, object[key] and slices, with the sandbox's refusals.
#include <algorithm>
#include <limits>

#include "core/text/chat/loop.h"
#include "core/text/chat/py_text.h"
#include "core/text/chat/run.h"

namespace nibble::chat {
namespace {

bool changes(const Value& object, std::string_view name) {
  static constexpr std::string_view kList[] = {"append", "clear", "pop",    "reverse",
                                               "insert", "sort",  "extend", "remove"};
  static constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  const auto has = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  return (object.is(Kind::list) && has(kList)) || (object.is(Kind::dict) && has(kDict));
}

Value macro_attribute(Run& run, const Value& v, std::string_view name) {
  const Procedure& p = *macro_of(v).procedure;
  if (name == "name") return p.name.empty() ? Value::none() : run.text(p.name);
  if (name == "catch_kwargs") return Value::boolean(p.uses_kwargs);
  if (name == "catch_varargs") return Value::boolean(p.uses_varargs);
  if (name == "caller") return Value::boolean(p.uses_caller);
  if (name == "arguments") {
    std::vector<Value> names;
    for (const auto& [symbol, text] : p.params) names.push_back(run.text(text));
    return run.tuple(std::move(names));
  }
  return Value::absent();
}

// What Python's getattr finds; absent if it finds nothing.
Value own_attribute(Run& run, const Value& o, const Value& key) {
  const std::string& name = text_of(key);
  if (o.is_undefined()) run.use_of_undefined(o);
  if ((name.starts_with("__") && name.ends_with("__")) || changes(o, name)) {
    return run.undefined("access to attribute '" + name + "' of a " + type_name(o) +
                         " is unsafe and not allowed");
  }
  switch (o.kind) {
    case Kind::name_space: {
      const Value* v = namespace_of(o).attributes.find(key);
      return v ? *v : Value::absent();
    }
    case Kind::macro:
      return macro_attribute(run, o, name);
    case Kind::loop: {
      const Value v = loop_attribute(run, o, name);
      if (!v.is_absent()) return v;
      break;
    }
    case Kind::cycler: {
      const Cycler& c = cycler_of(o);
      if (name == "current") return c.items[c.at];
      if (name == "pos") return Value::integer(static_cast<std::int64_t>(c.at));
      break;
    }
    case Kind::tuple:
      if (seq_of(o).group && name == "grouper") return seq_of(o).items[0];
      if (seq_of(o).group && name == "list") return seq_of(o).items[1];
      break;
    case Kind::self:
      for (const BlockStmt* b : run.program.blocks) {
        if (b->name != name) continue;
        auto f = std::make_shared<Function>();
        f->block = b;
        return run.object(Kind::function, std::move(f), sizeof(Function));
      }
      break;
    case Kind::range:
      if (name == "start") return Value::integer(range_of(o).start);
      if (name == "stop") return Value::integer(range_of(o).stop);
      if (name == "step") return Value::integer(range_of(o).step);
      break;
    default:
      break;
  }
  const Builtin* def = find_method(o, name);
  return def ? run.method(def, o) : Value::absent();
}

// What subscription finds; absent if it finds nothing.
Value own_item(Run& run, const Value& o, const Value& key) {
  if (o.is(Kind::dict)) {
    const Value* v = hashable(key) ? dict_of(o).find(key) : nullptr;
    return v ? *v : Value::absent();
  }
  if (!key.is_whole()) return Value::absent();
  std::int64_t i = key.whole();
  if (!o.is_string() && !is_seq(o) && !o.is(Kind::range)) return Value::absent();
  const auto size = static_cast<std::int64_t>(length_of(run, o));
  if (i < 0) i += size;
  if (i < 0 || i >= size) return Value::absent();
  const auto at = static_cast<std::size_t>(i);
  if (is_seq(o)) return seq_of(o).items[at];
  if (o.is(Kind::range)) return Value::integer(range_of(o).at(i));
  const Str& s = str_of(o);
  std::size_t from = at, length = 1;
  if (s.points != s.text.size()) {
    run.step(s.text.size() / 64);
    from = offset_of(s.text, at);
    int n;
    decode_at(s.text, from, &n);
    length = static_cast<std::size_t>(n);
  }
  return run.text_like(o, s.text.substr(from, length));
}

Value missing(Run& run, const Value& o, const Value& key) {
  if (key.is_string()) {
    return run.undefined(std::string("a ") + type_name(o) + " has no attribute '" + text_of(key) +
                         "'");
  }
  return run.undefined(std::string("a ") + type_name(o) + " has no element " + to_repr(run, key));
}

std::int64_t bound(const Value& v, std::int64_t otherwise, std::int64_t low, std::int64_t high,
                   std::int64_t size) {
  if (v.is(Kind::none)) return otherwise;
  std::int64_t i = v.whole();
  if (i < 0) i = i < -size ? std::numeric_limits<std::int64_t>::min() : i + size;
  return std::clamp(i, low, high);
}

}  // namespace

Value attribute(Run& run, const Value& o, const Value& name) {
  Value v = own_attribute(run, o, name);
  if (v.is_absent()) v = own_item(run, o, name);
  return v.is_absent() ? missing(run, o, name) : v;
}

Value item(Run& run, const Value& o, const Value& key) {
  if (o.is_undefined()) run.use_of_undefined(o);
  Value v = own_item(run, o, key);
  if (v.is_absent() && key.is_string()) v = own_attribute(run, o, key);
  return v.is_absent() ? missing(run, o, key) : v;
}

Value slice(Run& run, const Value& o, const Value& start, const Value& stop, const Value& step) {
  if (o.is_undefined()) run.use_of_undefined(o);
  if (!o.is_string() && !is_seq(o) && !o.is(Kind::range)) {
    return run.undefined(std::string("a ") + type_name(o) + " cannot be sliced");
  }
  for (const Value* v : {&start, &stop, &step}) {
    if (v->is_undefined()) run.use_of_undefined(*v);
    if (!v->is(Kind::none) && !v->is_whole()) {
      return run.undefined(std::string("a slice needs integers, found ") + type_name(*v));
    }
  }
  const auto size = static_cast<std::int64_t>(length_of(run, o));
  std::int64_t by = 1;
  if (!step.is(Kind::none)) {
    by = std::clamp<std::int64_t>(step.whole(), -size - 1, size + 1);
    if (by == 0 && step.whole() == 0) run.fail("a slice step cannot be zero");
  }
  const bool back = by < 0;
  const std::int64_t low = back ? -1 : 0, high = back ? size - 1 : size;
  const std::int64_t from = bound(start, back ? high : low, low, high, size);
  const std::int64_t to = bound(stop, back ? low : high, low, high, size);
  const std::int64_t count = back ? (to < from ? (from - to - 1) / -by + 1 : 0)
                                  : (from < to ? (to - from - 1) / by + 1 : 0);
  if (o.is(Kind::range)) {
    auto r = std::make_shared<Range>();
    const Range& whole = range_of(o);
    r->start = whole.at(from);
    r->stop = whole.at(to);
    if (__builtin_mul_overflow(whole.step, by, &r->step)) run.fail("integer overflow in a slice");
    r->size = static_cast<std::size_t>(count);
    return run.object(Kind::range, std::move(r), sizeof(Range));
  }
  if (o.is_string()) {
    const Str& s = str_of(o);
    run.step(s.text.size() / 64);
    if (by == 1) {
      const bool ascii = s.points == s.text.size();
      const auto at = [&](std::int64_t n) {
        return ascii ? static_cast<std::size_t>(n) : offset_of(s.text, static_cast<std::size_t>(n));
      };
      const std::size_t a = at(from), b = count > 0 ? at(to) : a;
      return run.text_like(o, s.text.substr(a, b - a));
    }
    std::vector<std::size_t> places;
    run.room((s.points + 1) * sizeof(std::size_t));
    for (std::size_t at = 0; at < s.text.size();) {
      places.push_back(at);
      int n;
      decode_at(s.text, at, &n);
      at += static_cast<std::size_t>(n);
    }
    places.push_back(s.text.size());
    std::string out;
    for (std::int64_t k = 0; k < count; ++k) {
      const auto at = static_cast<std::size_t>(from + k * by);
      out.append(s.text, places[at], places[at + 1] - places[at]);
    }
    return run.text_like(o, std::move(out));
  }
  std::vector<Value> out;
  out.reserve(static_cast<std::size_t>(count));
  for (std::int64_t k = 0; k < count; ++k) {
    out.push_back(seq_of(o).items[static_cast<std::size_t>(from + k * by)]);
  }
  return run.sequence(o.kind, std::move(out));
}

}  // namespace nibble::chat
