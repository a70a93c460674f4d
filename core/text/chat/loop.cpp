#include "core/text/chat/loop.h"

namespace nibble::chat {
namespace {

// A loop that a template has put away must not keep the scopes of a statement that is over.
class LoopGuard {
 public:
  LoopGuard(Run& run, Loop& loop) : run_(run), loop_(loop), outer_(run.scope) {}
  ~LoopGuard() {
    run_.scope = outer_;
    loop_.scope.reset();
    loop_.last_changed.reset();
  }
  LoopGuard(const LoopGuard&) = delete;
  LoopGuard& operator=(const LoopGuard&) = delete;

 private:
  Run& run_;
  Loop& loop_;
  ScopePtr outer_;
};

bool passes(Run& run, const Loop& loop, const Value& v) {
  const ForStmt& s = *loop.statement;
  if (!s.test) return true;
  if (!loop.scope) return false;  // the statement is over
  const ScopePtr outer = run.scope;
  run.scope = loop.scope;
  run.enter();
  run.assign(s.target, v);
  const bool yes = truthy(run.eval(*s.test));
  run.scope = outer;
  return yes;
}

}  // namespace

Loop& loop_of(const Value& v) {
  return static_cast<Loop&>(*v.ref);
}

std::optional<Value> Loop::peek(Run& run) {
  while (!ahead && at < items.size()) {
    run.step();
    const Value v = items[at++];
    if (passes(run, *this, v)) ahead = v;
  }
  return ahead;
}

bool Loop::advance(Run& run) {
  if (!peek(run)) return false;
  if (index >= 0) previous = std::move(current);
  current = std::move(*ahead);
  ahead.reset();
  ++index;
  return true;
}

std::int64_t Loop::length(Run& run) {
  if (statement->test) {  // everything that is left is looked at now
    const bool had = peek(run).has_value();
    std::vector<Value> rest;
    for (; at < items.size(); ++at) {
      run.step();
      if (passes(run, *this, items[at])) rest.push_back(items[at]);
    }
    items = std::move(rest);
    at = 0;
    ahead = had ? ahead : std::nullopt;
  }
  return index + 1 + (ahead ? 1 : 0) + static_cast<std::int64_t>(items.size() - at);
}

Flow run_loop(Run& run, const ForStmt& s, const Value& iterable, int level) {
  auto object = std::make_shared<Loop>();
  Loop& loop = *object;
  loop.statement = &s;
  loop.scope = run.scope;
  loop.level = level;
  loop.items = items_of(run, iterable);
  loop.depth = run.deepest(loop.items) + 1;
  run.check_depth(loop.depth);
  const Value handle =
      run.object(Kind::loop, object, sizeof(Loop) + loop.items.size() * sizeof(Value));
  const LoopGuard guard(run, loop);
  while (loop.advance(run)) {
    run.step();
    run.line = s.line;
    run.scope = loop.scope;
    run.enter();
    run.assign(s.target, loop.current);
    run.assign(kLoop, handle);
    if (run.exec(s.body) == Flow::leave_loop) return Flow::next;
  }
  run.line = s.line;
  if (loop.index >= 0) return Flow::next;
  run.scope = loop.scope;
  run.enter();
  return run.exec(s.otherwise);  // break and continue in it belong to the loop around
}

Flow ForStmt::exec(Run& run) const {
  return run_loop(run, *this, run.eval(*iterable), 0);
}

Value call_loop(Run& run, const Value& v, CallArgs args) {
  const Loop& loop = loop_of(v);
  if (!loop.statement->recursive)
    run.fail("this loop is not marked as recursive, it cannot be called");
  if (!loop.scope) run.fail("a loop that is over cannot be called");
  if (args.positional.size() != 1 || !args.named.empty()) run.fail("loop() takes one argument");
  const int back = run.line;
  Value text = run.capture([&] {
    run.scope = loop.scope;
    run_loop(run, *loop.statement, args.positional[0], loop.level + 1);
  });
  run.line = back;
  return text;
}

Value loop_attribute(Run& run, const Value& v, std::string_view name) {
  Loop& loop = loop_of(v);
  const auto integer = [](std::int64_t n) { return Value::integer(n); };
  if (name == "index") return integer(loop.index + 1);
  if (name == "index0") return integer(loop.index);
  if (name == "first") return Value::boolean(loop.index == 0);
  if (name == "last") return Value::boolean(!loop.peek(run));
  if (name == "length") return integer(loop.length(run));
  if (name == "revindex") return integer(loop.length(run) - loop.index);
  if (name == "revindex0") return integer(loop.length(run) - loop.index - 1);
  if (name == "depth") return integer(loop.level + 1);
  if (name == "depth0") return integer(loop.level);
  if (name == "previtem") {
    return loop.index > 0 ? loop.previous : run.undefined("there is no previous item");
  }
  if (name == "nextitem") {
    const auto next = loop.peek(run);
    return next ? *next : run.undefined("there is no next item");
  }
  return Value::absent();
}

}  // namespace nibble::chat
