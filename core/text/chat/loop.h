// loop.h: the `loop` of a for statement.
#pragma once

#include <optional>

#include "core/text/chat/run.h"

namespace nibble::chat {

struct Loop : Object {
  const ForStmt* statement = nullptr;
  ScopePtr scope;  // around the loop; let go when the loop is over
  std::vector<Value> items;
  std::size_t at = 0;          // of the next item that was not looked at
  std::optional<Value> ahead;  // looked at, not yet visited
  Value previous, current;
  std::int64_t index = -1;
  int level = 0;  // of recursion
  std::optional<Value> last_changed;

  // The next item that passes the filter, looked at when it is needed: as Jinja, one ahead.
  std::optional<Value> peek(Run& run);
  bool advance(Run& run);
  std::int64_t length(Run& run);
};

// Runs the statement's body for each item.
Flow run_loop(Run& run, const ForStmt& statement, const Value& iterable, int level);

}  // namespace nibble::chat
