// uses.h: which ops touch a buffer, for rewrites of a traced program.
#pragma once

#include <algorithm>
#include <vector>

#include "core/program/program.h"

namespace nibble {

constexpr std::size_t kNone = static_cast<std::size_t>(-1);  // no op

inline bool in(const std::vector<std::int32_t>& list, std::int32_t buffer) {
  return std::find(list.begin(), list.end(), buffer) != list.end();
}

// By ops from .. until - 1.
inline bool written_between(const Program& program, const Tensor& t, std::size_t from, std::size_t until) {
  for (std::size_t i = from; t.valid() && i < until; ++i) {
    if (in(program.ops[i].writes, t.buffer)) return true;
  }
  return false;
}

inline void erase_op(Program& program, std::size_t at) {
  program.ops.erase(program.ops.begin() + static_cast<std::ptrdiff_t>(at));
}

}  // namespace nibble
