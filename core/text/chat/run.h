// run.h: one rendering: scopes, output, limits, and the making of values.
#pragma once

#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text/chat/ast.h"
#include "core/text/chat/template.h"
#include "core/text/chat/value.h"

namespace nibble::chat {

struct Scope {
  std::shared_ptr<Scope> parent;  // null for the outermost, whose names live in the Run
  std::vector<std::pair<int, Value>> names;
  bool kept = false;
};
using ScopePtr = std::shared_ptr<Scope>;

using NamedValues = std::vector<std::pair<std::string, Value>>;

struct CallArgs {
  std::vector<Value> positional;
  NamedValues named;
};

// Arguments after they were matched with a builtin's parameters.
struct Args {
  Value self;
  std::array<Value, 6> at;  // absent where not given
  std::vector<Value> rest;  // more positional ones, if the builtin takes them
  NamedValues named;        // more keywords, if it takes them
  bool has(std::size_t k) const { return !at[k].is_absent(); }
};

struct Builtin {
  std::string_view name;
  Value (*call)(Run&, Args&);
  std::array<const char*, 6> params = {};
  int required = 0;
  bool rest = false, named = false;
};
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);

struct Macro : Object {
  const Procedure* procedure = nullptr;
  ScopePtr closure;
};
inline Macro& macro_of(const Value& v) {
  return static_cast<Macro&>(*v.ref);
}

struct Loop;
Loop& loop_of(const Value& v);

class Run {
 public:
  Meter meter;  // first, so that it outlives all values

  Run(const Program& program, const RenderOptions& how);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  std::string render(const Json& input);

  // Limits and errors.
  void step(std::size_t n = 1) {
    meter.steps += n;
    if (meter.steps > how.limits.steps) too_long();
  }
  void room(std::size_t bytes) const {  // asks before something of this size is built
    if (bytes > how.limits.memory_bytes || meter.live > how.limits.memory_bytes - bytes) too_big();
  }
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void use_of_undefined(const Value& v) const;
  struct Deeper {
    explicit Deeper(Run& r) : run(r) {
      if (++run.depth_ > run.how.limits.depth) run.too_deep();
    }
    ~Deeper() { --run.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    Run& run;
  };

  // Evaluation.
  Value eval(const Expr& e) {
    step();
    const Deeper deeper(*this);
    return e.eval(*this);
  }
  Flow exec(const Body& body);
  Value call(const Value& callee, CallArgs args, const Value& caller = Value::absent());
  Value call_macro(const Macro& macro, CallArgs args, const Value& caller);
  Value call_builtin(const Builtin& def, Value self, CallArgs args);
  CallArgs arguments(const Arguments& args);
  Value filter(const Builtin* def, const std::string& name, const Arguments& args, Value input);

  // Names.
  Value lookup(int name);
  void assign(int name, Value value);
  void assign(const Target& target, const Value& value);
  ScopePtr enter();  // a scope inside the current one becomes current
  ScopePtr outermost() const { return outermost_; }
  void keep(const ScopePtr& s);  // a macro holds it: the run takes the cycle apart at its end
  ScopePtr scope;
  Value filter_input;  // the text of the filter block whose filters are being applied

  // Output.
  void write(std::string_view text);
  template <class F>
  Value capture(F&& body) {  // the text that `body` writes
    Capture c(*this);
    body();
    return c.take();
  }
  void mark_generation(std::size_t begin);
  std::size_t written_points();

  // Making values.
  Value text(std::string s, bool markup = false);
  Value text_like(const Value& like, std::string s) { return text(std::move(s), is_markup(like)); }
  Value list(std::vector<Value> items) { return sequence(Kind::list, std::move(items)); }
  Value tuple(std::vector<Value> items) { return sequence(Kind::tuple, std::move(items)); }
  Value sequence(Kind kind, std::vector<Value> items);
  Value iterator(std::vector<Value> items);
  Value dict(std::shared_ptr<Dict> d);
  Value undefined(std::string message);
  Value undefined_name(std::string_view name);
  Value name_space(std::shared_ptr<Namespace> ns);
  Value method(const Builtin* def, Value self);
  template <class T>
  Value object(Kind kind, std::shared_ptr<T> o, std::size_t bytes) {
    pay(*o, bytes);
    return Value(kind, std::move(o));
  }
  Value from_json(const Json& j, int depth = 0);
  void check_depth(int depth) const;
  int deepest(const std::vector<Value>& items) const;

  const Program& program;
  const RenderOptions& how;
  int line = 0;

 private:
  // Redirects output into a string while it lives.
  struct Capture {
    explicit Capture(Run& r) : run(r), outer_scope(r.scope) { run.open_.push_back(&buffer); }
    ~Capture() {
      run.meter.live -= buffer.size();
      run.open_.pop_back();
      run.scope = outer_scope;
    }
    Capture(const Capture&) = delete;
    Capture& operator=(const Capture&) = delete;
    Value take() { return run.text(buffer); }
    Run& run;
    std::string buffer;
    ScopePtr outer_scope;
  };
  friend struct Capture;

  void pay(Object& o, std::size_t bytes);
  Args match(const Builtin& def, Value self, CallArgs args) const;
  [[noreturn]] void too_long() const;
  [[noreturn]] void too_big() const;
  [[noreturn]] void too_deep() const;

  int depth_ = 0;
  std::string output_;
  std::vector<std::string*> open_ = {&output_};  // where output goes: the last one
  std::vector<Value> outer_names_;               // set at the top level, by symbol
  std::vector<Value> given_;                     // input and globals, by symbol
  ScopePtr outermost_;
  std::vector<ScopePtr> kept_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

// Text of unknown size: asks the run before it grows.
class TextBuilder {
 public:
  explicit TextBuilder(Run& run) : run_(run) {}
  ~TextBuilder() { run_.meter.live -= text_.size(); }
  TextBuilder(const TextBuilder&) = delete;
  TextBuilder& operator=(const TextBuilder&) = delete;

  void add(std::string_view s) {
    pay(s.size());
    text_ += s;
  }
  void add(char c) { add(std::string_view(&c, 1)); }
  void fill(std::string_view unit, std::int64_t times) {
    if (times <= 0 || unit.empty()) return;
    const auto most = run_.how.limits.memory_bytes / unit.size();
    if (static_cast<std::uint64_t>(times) > most) run_.room(run_.how.limits.memory_bytes + 1);
    const auto n = static_cast<std::size_t>(times);
    pay(unit.size() * n);
    if (unit.size() == 1) {
      text_.append(n, unit[0]);
    } else {
      text_.reserve(text_.size() + unit.size() * n);
      for (std::size_t k = 0; k < n; ++k) text_ += unit;
    }
  }
  std::string take() {
    run_.meter.live -= text_.size();
    return std::exchange(text_, {});
  }
  std::size_t size() const { return text_.size(); }

 private:
  // Nested evaluation may hold many unfinished texts, so they count before they are values.
  void pay(std::size_t bytes) {
    run_.room(bytes);
    run_.meter.live += bytes;
  }

  Run& run_;
  std::string text_;
};

// Operators (operators.cpp).
Value binary(Run& run, Op op, const Value& a, const Value& b);
Value negate(Run& run, const Value& v);
bool equals(Run& run, const Value& a, const Value& b);
bool less(Run& run, const Value& a, const Value& b, const char* symbol = "<");
bool contains(Run& run, const Value& container, const Value& item);
bool compare(Run& run, Cmp op, const Value& a, const Value& b);

// Attributes and items (attributes.cpp).
Value attribute(Run& run, const Value& object, const Value& name);  // object.name
Value item(Run& run, const Value& object, const Value& key);        // object[key]
Value slice(Run& run, const Value& object, const Value& start, const Value& stop,
            const Value& step);
const Builtin* find_method(const Value& object, std::string_view name);
Value loop_attribute(Run& run, const Value& loop, std::string_view name);
Value call_loop(Run& run, const Value& loop, CallArgs args);

// Iteration and size (iterate.cpp).
std::vector<Value> items_of(Run& run, const Value& v);  // an iterator is used up
std::size_t length_of(Run& run, const Value& v);
bool iterable(const Value& v);

// Text (repr.cpp, format.cpp, json_text.cpp).
std::string to_text(Run& run, const Value& v);  // Python's str()
std::string to_repr(Run& run, const Value& v);
std::string real_text(double d);
std::string escape_html(Run& run, std::string_view s);
Value escape(Run& run, const Value& v);  // Markup
std::string format_percent(Run& run, const Value& format, const Value& args);
std::string format_braces(Run& run, const Value& format, const std::vector<Value>& args,
                          const NamedValues& named);
struct JsonStyle {
  bool ascii = false, sort_keys = false;
  std::optional<std::string> indent;  // the text of one level
  std::string item_separator = ", ", key_separator = ": ";
};
std::string json_text(Run& run, const Value& v, const JsonStyle& style);

// Conversions of arguments, with errors that name what was expected.
std::int64_t want_integer(Run& run, const Value& v, const char* what);
const std::string& want_text(Run& run, const Value& v, const char* what);
std::int64_t int_or(Run& run, const Args& a, std::size_t k, std::int64_t otherwise);
bool bool_or(const Args& a, std::size_t k, bool otherwise);

}  // namespace nibble::chat
