// globals.cpp: range, dict, namespace, cycler, joiner, raise_exception, strftime_now.
#include "core/text/chat/globals.h"

#include <ctime>
#include <limits>

#include "core/text/chat/builtins.h"
#include "core/text/chat/dates.h"
#include "core/text/chat/run.h"

namespace nibble::chat {
namespace {

constexpr std::uint64_t kMaxRange = 100'000;  // as Jinja's sandbox

Value range(Run& run, Args& a) {
  auto r = std::make_shared<Range>();
  const std::int64_t first = want_integer(run, a.at[0], "an argument of range");
  r->start = a.has(1) ? first : 0;
  r->stop = a.has(1) ? want_integer(run, a.at[1], "an argument of range") : first;
  r->step = a.has(2) ? want_integer(run, a.at[2], "an argument of range") : 1;
  if (r->step == 0) run.fail("the step of range is zero");
  if (r->step > 0 ? r->start < r->stop : r->start > r->stop) {
    const auto low = static_cast<std::uint64_t>(r->step > 0 ? r->start : r->stop);
    const auto high = static_cast<std::uint64_t>(r->step > 0 ? r->stop : r->start);
    const auto by =
        r->step > 0 ? static_cast<std::uint64_t>(r->step) : 0 - static_cast<std::uint64_t>(r->step);
    const std::uint64_t size = (high - low - 1) / by + 1;
    if (size > kMaxRange) run.fail("a range of more than " + std::to_string(kMaxRange) + " items");
    r->size = size;
  }
  return run.object(Kind::range, std::move(r), sizeof(Range));
}

// A dict and keywords, as dict() and namespace() take them.
void fill(Run& run, Dict& d, const Args& a) {
  if (a.has(0)) {
    const Value& from = a.at[0];
    if (from.is(Kind::dict)) {
      run.room(dict_of(from).items.size() * 2 * sizeof(Value));
      for (const auto& [k, v] : dict_of(from).items) d.set(k, v);
    } else {
      for (const Value& pair : items_of(run, from)) {
        const auto two = items_of(run, pair);
        if (two.size() != 2) run.fail("expected pairs of a key and a value");
        if (!hashable(two[0]))
          run.fail(std::string("unhashable type as a key: ") + type_name(two[0]));
        d.set(two[0], two[1]);
      }
    }
  }
  for (const auto& [name, value] : a.named) d.set(run.text(name), value);
}
Value dict(Run& run, Args& a) {
  auto d = std::make_shared<Dict>();
  fill(run, *d, a);
  return run.dict(std::move(d));
}
Value name_space(Run& run, Args& a) {
  auto n = std::make_shared<Namespace>();
  fill(run, n->attributes, a);
  return run.name_space(std::move(n));
}

Value cycler(Run& run, Args& a) {
  if (a.rest.empty()) run.fail("cycler needs one or more values");
  auto c = std::make_shared<Cycler>();
  c->items = std::move(a.rest);
  c->depth = run.deepest(c->items) + 1;
  run.check_depth(c->depth);
  return run.object(Kind::cycler, std::move(c), sizeof(Cycler));
}
Value joiner(Run& run, Args& a) {
  auto j = std::make_shared<Joiner>();
  j->separator = a.has(0) ? to_text(run, a.at[0]) : ", ";
  const std::size_t bytes = sizeof(Joiner) + j->separator.size();
  return run.object(Kind::joiner, std::move(j), bytes);
}

Value raise_exception(Run& run, Args& a) {
  run.fail(to_text(run, a.at[0]));
}

Value strftime_now(Run& run, Args& a) {
  std::tm now{};
  if (run.how.now) {
    now = run.how.now();
  } else {
    const std::time_t t = std::time(nullptr);
    localtime_r(&t, &now);
  }
  const std::string& format = want_text(run, a.at[0], "the format of strftime_now");
  run.room(format.size() * 32);
  return run.text(format_date(now, format));
}

constexpr Builtin kGlobals[] = {
    {"range", range, {"start", "stop", "step"}, 1},
    {"dict", dict, {"mapping"}, 0, false, true},
    {"namespace", name_space, {"mapping"}, 0, false, true},
    {"cycler", cycler, {}, 0, true},
    {"joiner", joiner, {"sep"}},
    {"raise_exception", raise_exception, {"message"}, 1},
    {"strftime_now", strftime_now, {"format"}, 1},
};

}  // namespace

const Builtin* find_global(std::string_view name) {
  return find_in_table(kGlobals, name);
}

}  // namespace nibble::chat
