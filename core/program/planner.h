// planner.h: lifetimes of buffers and their fixed offsets in the scratch arena.
#pragma once

#include <functional>

#include "core/program/program.h"

namespace nibble {

constexpr std::int64_t kBufferAlign = 256;

// Every tensor that an op's contract names, those that are not valid() too: first those that it reads,
// then those that it writes.
void visit_tensors(OpArgs& args, const std::function<void(Tensor&)>& read,
                   const std::function<void(Tensor&)>& write);

// Fills op.reads and op.writes from the tensors that the op's contract names.
void collect_uses(Op& op);

struct PlanOptions {
  // Elementwise ops write over an input that nobody reads afterwards.
  bool in_place = true;
};

// Sets every buffer's offset and the program's high-water mark. Two buffers share bytes only if no op
// needs both. Buffers that no op touches get no space.
void plan(Program& program, const PlanOptions& how = {});

}  // namespace nibble
