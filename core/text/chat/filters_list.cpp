// filters_list.cpp: filters on lists: order, groups, sums.
#include <algorithm>

#include "core/text/chat/builtins.h"
#include "core/text/chat/py_text.h"
#include "core/text/chat/run.h"

namespace nibble::chat {

Path attribute_path(Run& run, const Value& attribute) {
  Path path;
  if (attribute.is_absent() || attribute.is(Kind::none)) return path;
  if (!attribute.is_string()) {
    path.push_back(attribute);
    return path;
  }
  for (const auto part : split_on(text_of(attribute), ".", -1)) {
    const bool digits =
        !part.empty() && part.size() < 18 &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    path.push_back(digits ? Value::integer(std::stoll(std::string(part)))
                          : run.text(std::string(part)));
  }
  return path;
}

Value follow(Run& run, const Path& path, Value v, const Value& otherwise) {
  for (const Value& part : path) {
    v = item(run, v, part);
    if (v.is_undefined() && !otherwise.is_absent() && !otherwise.is(Kind::none)) v = otherwise;
  }
  return v;
}

Value ignore_case(Run& run, const Value& v, bool case_sensitive) {
  return case_sensitive || !v.is_string() ? v : run.text(to_lower(text_of(v)));
}

namespace {

struct Keyed {
  Value key, value;
};
void order(Run& run, std::vector<Keyed>& all, bool reverse) {
  std::stable_sort(all.begin(), all.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? less(run, b.key, a.key) : less(run, a.key, b.key);
  });
}
Value values_of(Run& run, std::vector<Keyed>& all) {
  std::vector<Value> out;
  out.reserve(all.size());
  for (Keyed& k : all) out.push_back(std::move(k.value));
  return run.list(std::move(out));
}

Value first(Run& run, Args& a) {
  if (a.self.is(Kind::iterator)) {
    Iterator& it = iterator_of(a.self);
    if (it.at < it.items.size()) return it.items[it.at++];
  } else if (const auto items = items_of(run, a.self); !items.empty()) {
    return items[0];
  }
  return run.undefined("no first item, the sequence was empty");
}
Value last(Run& run, Args& a) {
  if (a.self.is(Kind::iterator))
    run.fail("last: a generator cannot be read from its end, use list before");
  const auto items = items_of(run, a.self);
  return items.empty() ? run.undefined("no last item, the sequence was empty") : items.back();
}

Value join(Run& run, Args& a) {
  const std::string by = a.has(0) ? to_text(run, a.at[0]) : "";
  const Path path = attribute_path(run, a.at[1]);
  TextBuilder out(run);
  bool start = true;
  for (const Value& v : items_of(run, a.self)) {
    if (!start) out.add(by);
    start = false;
    out.add(to_text(run, follow(run, path, v)));
  }
  return run.text(out.take());
}

Value list(Run& run, Args& a) {
  return run.list(items_of(run, a.self));
}

Value items(Run& run, Args& a) {
  if (a.self.is_undefined()) return run.iterator({});
  if (!a.self.is(Kind::dict))
    run.fail(std::string("items needs a mapping, found ") + type_name(a.self));
  std::vector<Value> out;
  for (const auto& [k, v] : dict_of(a.self).items) out.push_back(run.tuple({k, v}));
  return run.iterator(std::move(out));
}

Value reverse(Run& run, Args& a) {
  auto all = items_of(run, a.self);
  std::reverse(all.begin(), all.end());
  if (a.self.is_string()) {
    std::string out;
    for (const Value& v : all) out += text_of(v);
    return run.text_like(a.self, std::move(out));
  }
  return a.self.is(Kind::iterator) ? run.list(std::move(all)) : run.iterator(std::move(all));
}

Value sort(Run& run, Args& a) {
  const bool sensitive = bool_or(a, 1, false);
  std::vector<Path> paths;
  if (a.has(2) && a.at[2].is_string()) {
    for (const auto part : split_on(text_of(a.at[2]), ",", -1)) {
      paths.push_back(attribute_path(run, run.text(std::string(part))));
    }
  } else {
    paths.push_back(attribute_path(run, a.at[2]));
  }
  std::vector<Keyed> all;
  for (const Value& v : items_of(run, a.self)) {
    std::vector<Value> keys;
    for (const Path& p : paths) keys.push_back(ignore_case(run, follow(run, p, v), sensitive));
    all.push_back({keys.size() == 1 ? keys[0] : run.list(std::move(keys)), v});
  }
  order(run, all, bool_or(a, 0, false));
  return values_of(run, all);
}

Value dictsort(Run& run, Args& a) {
  if (a.self.is_undefined()) run.use_of_undefined(a.self);
  if (!a.self.is(Kind::dict))
    run.fail(std::string("dictsort needs a dict, found ") + type_name(a.self));
  const std::string by = a.has(1) ? to_text(run, a.at[1]) : "key";
  if (by != "key" && by != "value")
    run.fail("dictsort: expected by='key' or by='value', found '" + by + "'");
  std::vector<Keyed> all;
  for (const auto& [k, v] : dict_of(a.self).items) {
    all.push_back({ignore_case(run, by == "key" ? k : v, bool_or(a, 0, false)), run.tuple({k, v})});
  }
  order(run, all, bool_or(a, 2, false));
  return values_of(run, all);
}

Value unique(Run& run, Args& a) {
  const Path path = attribute_path(run, a.at[1]);
  Dict seen;
  std::vector<Value> out;
  for (const Value& v : items_of(run, a.self)) {
    const Value key = ignore_case(run, follow(run, path, v), bool_or(a, 0, false));
    if (!hashable(key)) run.fail(std::string("unique: unhashable type ") + type_name(key));
    if (seen.find(key)) continue;
    seen.set(key, Value::none());
    out.push_back(v);
  }
  return run.iterator(std::move(out));
}

Value extreme(Run& run, Args& a, bool most) {
  const Path path = attribute_path(run, a.at[1]);
  Value best, best_key;
  bool any = false;
  for (const Value& v : items_of(run, a.self)) {
    const Value key = ignore_case(run, follow(run, path, v), bool_or(a, 0, false));
    if (any && !(most ? less(run, best_key, key, ">") : less(run, key, best_key))) continue;
    best = v;
    best_key = key;
    any = true;
  }
  return any ? best : run.undefined("no aggregated item, the sequence was empty");
}
Value min(Run& run, Args& a) {
  return extreme(run, a, false);
}
Value max(Run& run, Args& a) {
  return extreme(run, a, true);
}

Value sum(Run& run, Args& a) {
  const Path path = attribute_path(run, a.at[0]);
  Value total = a.has(1) ? a.at[1] : Value::integer(0);
  if (total.is_string()) run.fail("sum cannot add strings, use join");
  for (const Value& v : items_of(run, a.self))
    total = binary(run, Op::add, total, follow(run, path, v));
  return total;
}

Value batch(Run& run, Args& a) {
  const std::int64_t size = want_integer(run, a.at[0], "batch: the size");
  std::vector<Value> rows, row;
  for (const Value& v : items_of(run, a.self)) {
    if (static_cast<std::int64_t>(row.size()) == size)
      rows.push_back(run.list(std::exchange(row, {})));
    row.push_back(v);
  }
  if (!row.empty()) {
    if (a.has(1) && !a.at[1].is(Kind::none) && size > static_cast<std::int64_t>(row.size())) {
      if (size > static_cast<std::int64_t>(run.how.limits.memory_bytes))
        run.room(run.how.limits.memory_bytes + 1);
      run.room(static_cast<std::size_t>(size) * sizeof(Value));
      row.resize(static_cast<std::size_t>(size), a.at[1]);
    }
    rows.push_back(run.list(std::move(row)));
  }
  return run.iterator(std::move(rows));
}

Value slice(Run& run, Args& a) {
  const std::int64_t slices = want_integer(run, a.at[0], "slice: the number");
  if (slices <= 0) run.fail("slice: expected a number above 0");
  const auto all = items_of(run, a.self);
  const auto size = static_cast<std::int64_t>(all.size());
  if (slices > 1'000'000) run.fail("slice: more than 1000000 slices");
  run.room(static_cast<std::size_t>(slices) * 2 * sizeof(Value));
  const std::int64_t each = size / slices, longer = size % slices;
  std::vector<Value> rows;
  std::int64_t at = 0;
  for (std::int64_t k = 0; k < slices; ++k) {
    const std::int64_t to = at + each + (k < longer ? 1 : 0);
    std::vector<Value> row(all.begin() + at, all.begin() + to);
    if (a.has(1) && !a.at[1].is(Kind::none) && k >= longer) row.push_back(a.at[1]);
    rows.push_back(run.list(std::move(row)));
    at = to;
  }
  return run.iterator(std::move(rows));
}

Value groupby(Run& run, Args& a) {
  const Path path = attribute_path(run, a.at[0]);
  const bool sensitive = bool_or(a, 2, false);
  std::vector<Keyed> all;
  for (const Value& v : items_of(run, a.self)) {
    all.push_back({ignore_case(run, follow(run, path, v, a.at[1]), sensitive), v});
  }
  order(run, all, false);
  std::vector<Value> groups;
  for (std::size_t from = 0; from < all.size();) {
    std::size_t to = from;
    std::vector<Value> members;
    while (to < all.size() && equals(run, all[to].key, all[from].key))
      members.push_back(all[to++].value);
    if (to == from) members.push_back(all[to++].value);  // a NaN is not equal to itself
    const Value grouper = follow(run, path, members[0], a.at[1]);
    const Value group = run.tuple({grouper, run.list(std::move(members))});
    seq_of(group).group = true;
    groups.push_back(group);
    from = to;
  }
  return run.list(std::move(groups));
}

Value random(Run& run, Args& a) {
  const auto all = items_of(run, a.self);
  if (all.empty()) return run.undefined("no random item, the sequence was empty");
  // A rendering is repeatable: the choice depends on what was rendered so far only.
  return all[(run.meter.steps * 2654435761u >> 7) % all.size()];
}

constexpr Builtin kFilters[] = {
    {"batch", batch, {"linecount", "fill_with"}, 1},
    {"dictsort", dictsort, {"case_sensitive", "by", "reverse"}},
    {"first", first},
    {"groupby", groupby, {"attribute", "default", "case_sensitive"}, 1},
    {"items", items},
    {"join", join, {"d", "attribute"}},
    {"last", last},
    {"list", list},
    {"max", max, {"case_sensitive", "attribute"}},
    {"min", min, {"case_sensitive", "attribute"}},
    {"random", random},
    {"reverse", reverse},
    {"slice", slice, {"slices", "fill_with"}, 1},
    {"sort", sort, {"reverse", "case_sensitive", "attribute"}},
    {"sum", sum, {"attribute", "start"}},
    {"unique", unique, {"case_sensitive", "attribute"}},
};

}  // namespace

const Builtin* find_list_filter(std::string_view name) {
  return find_in_table(kFilters, name);
}

}  // namespace nibble::chat
