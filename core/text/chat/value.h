// value.h: the values a template computes with. They behave as Python's where it shows.
//
// Strings, lists, tuples and dicts never change once they are made (the sandbox forbids it), so
// values share them. Only a namespace changes; the rendering owns all of them and takes cycles
// apart.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::chat {

enum class Kind : std::uint8_t {
  absent,  // an argument that was not given; never seen by a template
  undefined,
  none,
  boolean,
  integer,
  big,
  real,
  string,
  list,
  tuple,
  dict,
  range,
  view,
  iterator,
  name_space,
  macro,
  function,
  method,
  loop,
  cycler,
  joiner,
  self,
};

// What a rendering has used. Objects report to it when they are made and when they go.
struct Meter {
  std::size_t live = 0;
  std::size_t steps = 0;
};

struct Object {
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() {
    if (meter) meter->live -= charged;
  }
  Meter* meter = nullptr;  // null for literals, which live in the parsed template
  std::size_t charged = 0;
  int depth = 0;  // levels of containers inside; limited, as destructors recurse
};

struct Value {
  Kind kind = Kind::undefined;
  union {
    bool b;
    std::int64_t i = 0;
    double d;
  };
  std::shared_ptr<Object> ref;

  Value() = default;
  Value(Kind k, std::shared_ptr<Object> object) : kind(k), ref(std::move(object)) {}
  static Value absent() { return Value(Kind::absent, nullptr); }
  static Value none() { return Value(Kind::none, nullptr); }
  static Value boolean(bool v) {
    Value r(Kind::boolean, nullptr);
    r.b = v;
    return r;
  }
  static Value integer(std::int64_t v) {
    Value r(Kind::integer, nullptr);
    r.i = v;
    return r;
  }
  static Value real(double v) {
    Value r(Kind::real, nullptr);
    r.d = v;
    return r;
  }

  bool is(Kind k) const { return kind == k; }
  bool is_absent() const { return kind == Kind::absent; }
  bool is_undefined() const { return kind == Kind::undefined; }
  bool is_string() const { return kind == Kind::string; }
  bool is_whole() const { return kind == Kind::integer || kind == Kind::boolean; }
  bool is_number() const { return is_whole() || kind == Kind::real || kind == Kind::big; }
  std::int64_t whole() const { return kind == Kind::boolean ? (b ? 1 : 0) : i; }
};

struct Str : Object {
  std::string text;        // well-formed UTF-8
  std::size_t points = 0;  // code points; equal to text.size() for ASCII
  bool markup = false;     // Markup: adding text to it escapes the text
};

// An undefined value remembers what it says when it is used where a value is needed.
struct Undefined : Object {
  std::string message;
};

struct Seq : Object {  // list, tuple
  std::vector<Value> items;
  bool group = false;  // groupby's tuple with the names grouper and list
};

// Orders hashable keys; 1, 1.0 and true are one key, as in Python.
struct KeyLess {
  bool operator()(const Value& a, const Value& b) const;
};

struct Dict : Object {
  std::vector<std::pair<Value, Value>> items;   // in order of insertion
  std::map<Value, std::size_t, KeyLess> index;  // only once there are more than a few

  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);  // replaces or appends
};

struct Range : Object {
  std::int64_t start = 0, stop = 0, step = 1;
  std::size_t size = 0;
  // Wraps on the way, as the product may not fit where the sum does.
  std::int64_t at(std::int64_t i) const {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(start) +
                                     static_cast<std::uint64_t>(i) *
                                         static_cast<std::uint64_t>(step));
  }
};

enum class ViewOf : std::uint8_t { keys, values, items };
struct View : Object {
  ViewOf what = ViewOf::keys;
  std::shared_ptr<Dict> dict;
};

struct Iterator : Object {  // what map, select, reverse and others give: it can be walked once
  std::vector<Value> items;
  std::size_t at = 0;
};

struct Namespace : Object {
  Dict attributes;
};

struct Cycler : Object {
  std::vector<Value> items;
  std::size_t at = 0;
};

struct Joiner : Object {
  std::string separator;
  bool used = false;
};

struct Builtin;
struct BlockStmt;
struct Function : Object {
  const Builtin* def = nullptr;
  const BlockStmt* block = nullptr;  // self.name: renders that block
};
struct Method : Object {
  const Builtin* def = nullptr;
  Value self;
};

inline Str& str_of(const Value& v) {
  return static_cast<Str&>(*v.ref);
}
inline const std::string& text_of(const Value& v) {
  return str_of(v).text;
}
inline bool is_markup(const Value& v) {
  return v.is_string() && str_of(v).markup;
}
inline Seq& seq_of(const Value& v) {
  return static_cast<Seq&>(*v.ref);
}
inline Dict& dict_of(const Value& v) {
  return static_cast<Dict&>(*v.ref);
}
inline Range& range_of(const Value& v) {
  return static_cast<Range&>(*v.ref);
}
inline View& view_of(const Value& v) {
  return static_cast<View&>(*v.ref);
}
inline Iterator& iterator_of(const Value& v) {
  return static_cast<Iterator&>(*v.ref);
}
inline Namespace& namespace_of(const Value& v) {
  return static_cast<Namespace&>(*v.ref);
}
inline Cycler& cycler_of(const Value& v) {
  return static_cast<Cycler&>(*v.ref);
}
inline Joiner& joiner_of(const Value& v) {
  return static_cast<Joiner&>(*v.ref);
}
inline Method& method_of(const Value& v) {
  return static_cast<Method&>(*v.ref);
}

inline bool is_seq(const Value& v) {
  return v.is(Kind::list) || v.is(Kind::tuple);
}
inline bool is_mapping(const Value& v) {
  return v.is(Kind::dict);
}

const char* type_name(const Value& v);  // Python's: "str", "NoneType", ...
bool truthy(const Value& v);
bool same_object(const Value& a, const Value& b);
bool hashable(const Value& v);
int depth_of(const Value& v);
Value literal(std::string text);  // a string that no rendering pays for
Value big_literal(std::string digits);
int compare_numbers(const Value& a, const Value& b);  // -1, 0, 1; 2 when one is NaN

}  // namespace nibble::chat
