// exec.cpp: statements, loops apart.
#include <utility>

#include "core/text/chat/run.h"

namespace nibble::chat {
namespace {

// Leaves the scopes that were entered while it lived, also when an error passes.
class ScopeGuard {
 public:
  explicit ScopeGuard(Run& run) : run_(run), outer_(run.scope) { run.enter(); }
  ~ScopeGuard() { run_.scope = outer_; }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  Run& run_;
  ScopePtr outer_;
};

Value make_macro(Run& run, const Procedure& p) {
  auto m = std::make_shared<Macro>();
  m->procedure = &p;
  m->closure = run.scope;
  return run.object(Kind::macro, std::move(m), sizeof(Macro));
}

Value apply(Run& run, const Expr& filter, Value text) {
  const Value outer = std::exchange(run.filter_input, std::move(text));
  Value v = run.eval(filter);
  run.filter_input = outer;
  return v;
}

void write_value(Run& run, const Value& v) {
  v.is_string() ? run.write(text_of(v)) : run.write(to_text(run, v));
}

}  // namespace

Flow DataStmt::exec(Run& run) const {
  run.write(text);
  return Flow::next;
}

Flow OutputStmt::exec(Run& run) const {
  for (const auto& e : values) write_value(run, run.eval(*e));
  return Flow::next;
}

Flow IfStmt::exec(Run& run) const {
  for (const Branch& b : branches) {
    run.line = b.line;
    run.step();
    if (truthy(run.eval(*b.test))) return run.exec(b.body);
  }
  return run.exec(otherwise);
}

Flow SetStmt::exec(Run& run) const {
  if (value) {
    run.assign(target, run.eval(*value));
    return Flow::next;
  }
  Flow flow = Flow::next;
  Value text = run.capture([&] {
    const ScopeGuard guard(run);
    flow = run.exec(body);
  });
  if (flow != Flow::next) return flow;
  run.line = line;
  run.assign(target, filter ? apply(run, *filter, std::move(text)) : text);
  return Flow::next;
}

Flow WithStmt::exec(Run& run) const {
  std::vector<Value> evaluated;
  for (const auto& [target, e] : values) evaluated.push_back(run.eval(*e));
  const ScopeGuard guard(run);
  for (std::size_t i = 0; i < values.size(); ++i) run.assign(values[i].first, evaluated[i]);
  return run.exec(body);
}

Flow MacroStmt::exec(Run& run) const {
  run.keep(run.scope);
  run.assign(name, make_macro(run, procedure));
  return Flow::next;
}

Flow CallStmt::exec(Run& run) const {
  const Value caller = make_macro(run, procedure);
  const Value f = run.eval(*call->callee);
  write_value(run, run.call(f, run.arguments(call->args), caller));
  // A template may have put its caller away; then the scope must outlive this statement in order.
  if (caller.ref.use_count() > 1) run.keep(macro_of(caller).closure);
  return Flow::next;
}

Flow FilterStmt::exec(Run& run) const {
  Flow flow = Flow::next;
  Value text = run.capture([&] {
    const ScopeGuard guard(run);
    flow = run.exec(body);
  });
  if (flow != Flow::next) return flow;
  run.line = line;
  write_value(run, apply(run, *filter, std::move(text)));
  return Flow::next;
}

Flow BlockStmt::exec(Run& run) const {
  const ScopeGuard guard(run);
  if (!scoped) run.scope->parent = run.outermost();
  return run.exec(body);
}

Flow GenerationStmt::exec(Run& run) const {
  const ScopeGuard guard(run);
  if (!run.how.generation) return run.exec(body);
  const std::size_t begin = run.written_points();
  run.exec(body);
  run.mark_generation(begin);
  return Flow::next;
}

Flow ScopeStmt::exec(Run& run) const {
  const ScopeGuard guard(run);
  return run.exec(body);
}

Flow JumpStmt::exec(Run&) const {
  return flow;
}

Flow FailStmt::exec(Run& run) const {
  run.fail(what);
}

}  // namespace nibble::chat
