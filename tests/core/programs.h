// programs.h: programs that tests of rewrites write op by op, and what they look for in them.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/program/planner.h"
#include "core/program/program.h"

namespace nibble::test {

class Written {
 public:
  explicit Written(ProgramClass::Kind kind = ProgramClass::Kind::decode) { program.cls = {kind, 128, 4}; }

  Tensor make(std::int64_t cols, DType dtype = DType::f32, Rows rows = Rows::tokens) {
    Tensor t;
    t.buffer = static_cast<std::int32_t>(program.buffers.size());
    t.dtype = dtype;
    t.rows = rows;
    t.cols = t.stride = cols;
    program.buffers.push_back({rows, cols, dtype, program.rows_of(rows) * cols * dtype_bits(dtype) / 8, 0});
    return t;
  }
  void emit(std::string name, OpArgs args) { emit_at(program.ops.size(), std::move(name), std::move(args)); }
  void emit_at(std::size_t at, std::string name, OpArgs args) {
    Op op{std::move(name), std::move(args), {}, {}};
    collect_uses(op);
    program.ops.insert(program.ops.begin() + static_cast<std::ptrdiff_t>(at), std::move(op));
  }

  Program program;
};

inline const Op& find(const Program& p, const std::string& name) {
  for (const Op& op : p.ops) {
    if (op.name == name) return op;
  }
  throw std::runtime_error("no op " + name);
}
inline std::size_t place_of(const Program& p, const std::string& name) {
  return static_cast<std::size_t>(&find(p, name) - p.ops.data());
}
inline int count(const Program& p, const std::string& kind) {
  int n = 0;
  for (const Op& op : p.ops) n += kind == op_kind(op.args);
  return n;
}

}  // namespace nibble::test
