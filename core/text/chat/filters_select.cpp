// filters_select.cpp: map, select, reject, selectattr, rejectattr.
#include "core/text/chat/builtins.h"
#include "core/text/chat/run.h"

namespace nibble::chat {
namespace {

Value map(Run& run, Args& a) {
  std::vector<Value> out;
  const auto items = items_of(run, a.self);
  if (a.rest.empty() && !a.named.empty()) {
    Value attribute = Value::absent(), otherwise = Value::absent();
    for (const auto& [name, value] : a.named) {
      if (name == "attribute") {
        attribute = value;
      } else if (name == "default") {
        otherwise = value;
      } else {
        run.fail("map takes no argument '" + name + "'");
      }
    }
    if (attribute.is_absent()) run.fail("map needs the name of a filter or attribute=");
    const Path path = attribute_path(run, attribute);
    for (const Value& v : items) out.push_back(follow(run, path, v, otherwise));
    return run.iterator(std::move(out));
  }
  if (a.rest.empty()) run.fail("map needs the name of a filter or attribute=");
  const std::string name = to_text(run, a.rest[0]);
  const Builtin* def = find_filter(name);
  if (!def) run.fail("no filter named '" + name + "'");
  const std::vector<Value> more(a.rest.begin() + 1, a.rest.end());
  for (const Value& v : items) out.push_back(run.call_builtin(*def, v, {more, a.named}));
  return run.iterator(std::move(out));
}

Value pick(Run& run, Args& a, bool wanted, bool by_attribute) {
  std::vector<Value> out;
  if (!truthy(a.self)) return run.iterator({});
  Path path;
  std::size_t next = 0;
  if (by_attribute) {
    if (a.rest.empty()) run.fail("the name of an attribute is missing");
    path = attribute_path(run, a.rest[next++]);
  }
  const Builtin* def = nullptr;
  std::vector<Value> more;
  if (next < a.rest.size()) {
    const std::string name = to_text(run, a.rest[next++]);
    def = find_test(name);
    if (!def) run.fail("no test named '" + name + "'");
    more.assign(a.rest.begin() + static_cast<std::ptrdiff_t>(next), a.rest.end());
  }
  for (const Value& v : items_of(run, a.self)) {
    run.step();
    const Value subject = follow(run, path, v);
    const bool holds = truthy(def ? run.call_builtin(*def, subject, {more, a.named}) : subject);
    if (holds == wanted) out.push_back(v);
  }
  return run.iterator(std::move(out));
}
Value select(Run& run, Args& a) {
  return pick(run, a, true, false);
}
Value reject(Run& run, Args& a) {
  return pick(run, a, false, false);
}
Value selectattr(Run& run, Args& a) {
  return pick(run, a, true, true);
}
Value rejectattr(Run& run, Args& a) {
  return pick(run, a, false, true);
}

constexpr Builtin kFilters[] = {
    {"map", map, {}, 0, true, true},
    {"reject", reject, {}, 0, true, true},
    {"rejectattr", rejectattr, {}, 0, true, true},
    {"select", select, {}, 0, true, true},
    {"selectattr", selectattr, {}, 0, true, true},
};

}  // namespace

const Builtin* find_select_filter(std::string_view name) {
  return find_in_table(kFilters, name);
}

}  // namespace nibble::chat
