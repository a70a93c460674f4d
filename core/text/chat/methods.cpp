// methods.cpp: the methods of lists, tuples, dicts, ranges, numbers, loops and cyclers.
#include <cmath>

#include "core/text/chat/builtins.h"
#include "core/text/chat/loop.h"
#include "core/text/chat/run.h"

namespace nibble::chat {
namespace {

Value seq_index(Run& run, Args& a) {
  const auto items = items_of(run, a.self);
  const auto size = static_cast<std::int64_t>(items.size());
  const auto bound = [&](std::size_t k, std::int64_t otherwise) {
    const std::int64_t v = int_or(run, a, k, otherwise);
    return v < 0 ? std::max<std::int64_t>(0, v < -size ? 0 : v + size) : std::min(v, size);
  };
  const std::int64_t last = bound(2, size);
  for (std::int64_t i = bound(1, 0); i < last; ++i) {
    if (equals(run, items[static_cast<std::size_t>(i)], a.at[0])) return Value::integer(i);
  }
  run.fail("index: " + to_repr(run, a.at[0]) + " is not in the " + type_name(a.self));
}
Value seq_count(Run& run, Args& a) {
  std::int64_t n = 0;
  for (const Value& v : items_of(run, a.self)) n += equals(run, v, a.at[0]);
  return Value::integer(n);
}
Value copy(Run&, Args& a) {
  return a.self;
}

constexpr Builtin kList[] = {{"copy", copy}};
constexpr Builtin kSeq[] = {
    {"count", seq_count, {"value"}, 1},
    {"index", seq_index, {"value", "start", "stop"}, 1},
};

Value dict_get(Run& run, Args& a) {
  if (!hashable(a.at[0])) run.fail(std::string("unhashable type as a key: ") + type_name(a.at[0]));
  if (const Value* v = dict_of(a.self).find(a.at[0])) return *v;
  return a.has(1) ? a.at[1] : Value::none();
}
template <ViewOf What>
Value dict_view(Run& run, Args& a) {
  auto view = std::make_shared<View>();
  view->what = What;
  view->dict = std::static_pointer_cast<Dict>(a.self.ref);
  view->depth = a.self.ref->depth + 1;
  run.check_depth(view->depth);
  return run.object(Kind::view, std::move(view), sizeof(View));
}

constexpr Builtin kDict[] = {
    {"copy", copy},
    {"get", dict_get, {"key", "default"}, 1},
    {"items", dict_view<ViewOf::items>},
    {"keys", dict_view<ViewOf::keys>},
    {"values", dict_view<ViewOf::values>},
};

Value is_integer(Run&, Args& a) {
  return Value::boolean(std::isfinite(a.self.d) && a.self.d == std::floor(a.self.d));
}
constexpr Builtin kReal[] = {{"is_integer", is_integer}};

Value bit_length(Run&, Args& a) {
  std::int64_t v = a.self.whole(), n = 0;
  auto u = v < 0 ? 0 - static_cast<std::uint64_t>(v) : static_cast<std::uint64_t>(v);
  for (; u; u >>= 1) ++n;
  return Value::integer(n);
}
constexpr Builtin kWhole[] = {{"bit_length", bit_length}};

Value loop_cycle(Run& run, Args& a) {
  if (a.rest.empty()) run.fail("loop.cycle needs one or more values");
  return a.rest[static_cast<std::size_t>(loop_of(a.self).index) % a.rest.size()];
}
Value loop_changed(Run& run, Args& a) {
  Loop& loop = loop_of(a.self);
  Value now = run.tuple(std::move(a.rest));
  const bool changed = !loop.last_changed || !equals(run, *loop.last_changed, now);
  if (loop.scope) loop.last_changed = std::move(now);
  return Value::boolean(changed);
}
constexpr Builtin kLoopMethods[] = {
    {"changed", loop_changed, {}, 0, true},
    {"cycle", loop_cycle, {}, 0, true},
};

Value cycler_next(Run&, Args& a) {
  Cycler& c = cycler_of(a.self);
  const Value v = c.items[c.at];
  c.at = (c.at + 1) % c.items.size();
  return v;
}
Value cycler_reset(Run&, Args& a) {
  cycler_of(a.self).at = 0;
  return Value::none();
}
constexpr Builtin kCycler[] = {{"next", cycler_next}, {"reset", cycler_reset}};

}  // namespace

const Builtin* find_method(const Value& o, std::string_view name) {
  const Builtin* def = nullptr;
  switch (o.kind) {
    case Kind::string:
      if (is_markup(o)) def = find_markup_method(name);
      return def ? def : find_text_method(name);
    case Kind::list:
      if ((def = find_in_table(kList, name))) return def;
      return find_in_table(kSeq, name);
    case Kind::tuple:
    case Kind::range:
      return find_in_table(kSeq, name);
    case Kind::dict:
      return find_in_table(kDict, name);
    case Kind::real:
      return find_in_table(kReal, name);
    case Kind::integer:
    case Kind::boolean:
      return find_in_table(kWhole, name);
    case Kind::loop:
      return find_in_table(kLoopMethods, name);
    case Kind::cycler:
      return find_in_table(kCycler, name);
    default:
      return nullptr;
  }
}

}  // namespace nibble::chat
