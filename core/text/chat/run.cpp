#include "core/text/chat/run.h"

#include <algorithm>
#include <limits>

#include "core/text/chat/globals.h"
#include "core/text/chat/py_text.h"
#include "nibble/error.h"

namespace nibble::chat {
namespace {

constexpr int kMaxValueDepth = 400;
constexpr std::size_t kObjectBytes = 64;

}  // namespace

Run::Run(const Program& p, const RenderOptions& h) : program(p), how(h) {
  outermost_ = std::make_shared<Scope>();
  scope = outermost_;
  outer_names_.assign(p.symbols.size(), Value::absent());
  given_.assign(p.symbols.size(), Value::absent());
}

// Macros hold scopes that hold macros, and namespaces hold anything: taken apart one by one.
Run::~Run() {
  for (const auto& s : kept_) s->names.clear();
  for (const auto& n : namespaces_) {
    n->attributes.items.clear();
    n->attributes.index.clear();
  }
  outer_names_.clear();
}

std::string Run::render(const Json& input) {
  if (!input.is_object()) {
    throw Error(ErrorCode::invalid_argument,
                program.name + ": expected an object as input, found " + input.type_name());
  }
  for (std::size_t i = 0; i < program.symbols.size(); ++i) {
    const std::string& name = program.symbols[i];
    const Json* given = input.find(name);
    if (given) {
      given_[i] = from_json(*given);
    } else if (name == "tools" || name == "documents") {
      given_[i] = Value::none();
    } else if (name == "add_generation_prompt") {
      given_[i] = Value::boolean(false);
    } else if (i == kSelf) {
      given_[i] = Value(Kind::self, nullptr);
    } else if (const Builtin* def = find_global(name)) {
      auto f = std::make_shared<Function>();
      f->def = def;
      given_[i] = Value(Kind::function, std::move(f));
    }
  }
  if (how.generation) how.generation->clear();
  exec(program.body);
  if (how.generation) {  // text that a template caught and threw away has no place
    const std::size_t all = count_points(output_);
    for (auto& [begin, end] : *how.generation) {
      begin = std::min(begin, all);
      end = std::min(end, all);
    }
  }
  return std::move(output_);
}

void Run::fail(const std::string& what) const {
  const std::string where = line > 0 ? ": line " + std::to_string(line) + ": " : ": ";
  throw Error(ErrorCode::invalid_argument, program.name + where + what);
}

void Run::use_of_undefined(const Value& v) const {
  const auto* u = static_cast<const Undefined*>(v.ref.get());
  fail(u ? u->message : "the value is undefined");
}

void Run::too_long() const {
  fail("the template takes more than " + std::to_string(how.limits.steps) + " steps");
}
void Run::too_big() const {
  fail("the template needs more than " + std::to_string(how.limits.memory_bytes) +
       " bytes of memory");
}
void Run::too_deep() const {
  fail("recursion deeper than " + std::to_string(how.limits.depth) + " evaluations");
}

Flow Run::exec(const Body& body) {
  const Deeper deeper(*this);
  for (const auto& s : body) {
    step();
    line = s->line;
    const Flow flow = s->exec(*this);
    if (flow != Flow::next) return flow;
  }
  return Flow::next;
}

Value Run::lookup(int name) {
  const auto index = static_cast<std::size_t>(name);
  for (const Scope* s = scope.get(); s->parent; s = s->parent.get()) {
    step(s->names.size() / 16);
    for (const auto& [n, value] : s->names) {
      if (n == name) return value;
    }
  }
  if (!outer_names_[index].is_absent()) return outer_names_[index];
  if (!given_[index].is_absent()) return given_[index];
  return undefined_name(program.symbols[index]);
}

void Run::assign(int name, Value value) {
  if (!scope->parent) {
    outer_names_[static_cast<std::size_t>(name)] = std::move(value);
    return;
  }
  step(scope->names.size() / 16);
  for (auto& [n, old] : scope->names) {
    if (n == name) {
      old = std::move(value);
      return;
    }
  }
  scope->names.emplace_back(name, std::move(value));
}

void Run::assign(const Target& target, const Value& value) {
  switch (target.is) {
    case Target::Is::name:
      assign(target.name, value);
      return;
    case Target::Is::attribute: {
      const Value object = lookup(target.name);
      if (!object.is(Kind::name_space)) {
        fail("cannot assign an attribute of '" +
             program.symbols[static_cast<std::size_t>(target.name)] +
             "': expected a namespace, found " + type_name(object));
      }
      auto& attributes = namespace_of(object).attributes;
      const std::size_t before = attributes.items.size();
      attributes.set(literal(target.attribute), value);
      if (attributes.items.size() > before) pay(*object.ref, 2 * sizeof(Value) + kObjectBytes);
      return;
    }
    case Target::Is::tuple: {
      const std::vector<Value> items = items_of(*this, value);
      if (items.size() != target.items.size()) {
        fail("expected " + std::to_string(target.items.size()) + " values to unpack, found " +
             std::to_string(items.size()));
      }
      for (std::size_t i = 0; i < items.size(); ++i) assign(target.items[i], items[i]);
      return;
    }
  }
}

ScopePtr Run::enter() {
  auto inner = std::make_shared<Scope>();
  inner->parent = scope;
  scope = inner;
  return inner;
}

void Run::keep(const ScopePtr& s) {
  if (s->kept || !s->parent) return;
  room(sizeof(Scope) + kObjectBytes);
  meter.live += sizeof(Scope) + kObjectBytes;  // until the end of the run
  s->kept = true;
  kept_.push_back(s);
}

void Run::write(std::string_view text) {
  step(text.size() / 64);
  if (open_.size() == 1) {
    if (text.size() > how.limits.output_bytes - std::min(output_.size(), how.limits.output_bytes)) {
      fail("the output is larger than " + std::to_string(how.limits.output_bytes) + " bytes");
    }
  } else {
    room(text.size());
    meter.live += text.size();
  }
  *open_.back() += text;
}

void Run::pay(Object& o, std::size_t bytes) {
  room(bytes);
  step(bytes / 64);
  o.meter = &meter;
  o.charged += bytes;
  meter.live += bytes;
}

void Run::check_depth(int depth) const {
  if (depth > kMaxValueDepth) {
    fail("a value nested deeper than " + std::to_string(kMaxValueDepth) + " levels");
  }
}

int Run::deepest(const std::vector<Value>& items) const {
  int depth = 0;
  for (const Value& v : items) depth = std::max(depth, depth_of(v));
  return depth;
}

Value Run::text(std::string s, bool markup) {
  auto o = std::make_shared<Str>();
  const std::size_t bytes = 2 * kObjectBytes + s.size();
  o->points = count_points(s);
  o->text = std::move(s);
  o->markup = markup;
  return object(Kind::string, std::move(o), bytes);
}

Value Run::sequence(Kind kind, std::vector<Value> items) {
  auto o = std::make_shared<Seq>();
  o->depth = deepest(items) + 1;
  check_depth(o->depth);
  const std::size_t bytes = kObjectBytes + items.size() * sizeof(Value);
  o->items = std::move(items);
  return object(kind, std::move(o), bytes);
}

Value Run::iterator(std::vector<Value> items) {
  auto o = std::make_shared<Iterator>();
  o->depth = deepest(items) + 1;
  check_depth(o->depth);
  const std::size_t bytes = kObjectBytes + items.size() * sizeof(Value);
  o->items = std::move(items);
  return object(Kind::iterator, std::move(o), bytes);
}

Value Run::dict(std::shared_ptr<Dict> d) {
  d->depth = 0;
  for (const auto& [k, v] : d->items) d->depth = std::max({d->depth, depth_of(k), depth_of(v)});
  check_depth(++d->depth);
  const std::size_t bytes = kObjectBytes + d->items.size() * (2 * sizeof(Value) + kObjectBytes);
  return object(Kind::dict, std::move(d), bytes);
}

Value Run::undefined(std::string message) {
  auto o = std::make_shared<Undefined>();
  o->message = std::move(message);
  const std::size_t bytes = kObjectBytes + o->message.size();
  return object(Kind::undefined, std::move(o), bytes);
}

Value Run::undefined_name(std::string_view name) {
  std::string message(1, '\'');
  message += name;
  return undefined(message + "' is undefined");
}

Value Run::name_space(std::shared_ptr<Namespace> ns) {
  const std::size_t bytes =
      2 * kObjectBytes + ns->attributes.items.size() * (2 * sizeof(Value) + kObjectBytes);
  namespaces_.push_back(ns);
  return object(Kind::name_space, std::move(ns), bytes);
}

Value Run::method(const Builtin* def, Value self) {
  auto m = std::make_shared<Method>();
  m->def = def;
  m->depth = depth_of(self) + 1;
  check_depth(m->depth);
  m->self = std::move(self);
  return object(Kind::method, std::move(m), kObjectBytes);
}

Value Run::from_json(const Json& j, int depth) {
  check_depth(depth);
  if (j.is_null()) return Value::none();
  if (j.is_bool()) return Value::boolean(j.as_bool());
  if (j.is_integer()) {
    const std::string digits = j.dump();
    if (digits[0] != '-' &&
        j.as_uint() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return big_literal(digits);
    }
    return Value::integer(j.as_int());
  }
  if (j.is_number()) return Value::real(j.as_double());
  if (j.is_string()) {
    if (!valid_utf8(j.as_string())) fail("a string of the input is not valid UTF-8");
    return text(j.as_string());
  }
  if (j.is_array()) {
    std::vector<Value> items;
    items.reserve(j.as_array().size());
    for (const Json& x : j.as_array()) items.push_back(from_json(x, depth + 1));
    return list(std::move(items));
  }
  auto d = std::make_shared<Dict>();
  for (const auto& [k, v] : j.as_object()) {
    if (!valid_utf8(k)) fail("a key of the input is not valid UTF-8");
    d->set(text(k), from_json(v, depth + 1));
  }
  return dict(std::move(d));
}

// Buffers that are still open count as if they were written in place: a macro's text usually is.
std::size_t Run::written_points() {
  std::size_t n = 0;
  for (const std::string* buffer : open_) {
    step(buffer->size() / 64);
    n += count_points(*buffer);
  }
  return n;
}

void Run::mark_generation(std::size_t begin) {
  how.generation->emplace_back(begin, written_points());
}

}  // namespace nibble::chat
