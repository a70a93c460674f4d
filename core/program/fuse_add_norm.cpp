#include <algorithm>

#include "core/program/fuse.h"
#include "core/program/planner.h"
#include "core/program/uses.h"

namespace nibble {
namespace {

constexpr const char* kOption = "fused-add-norm";

const RmsNorm* norm_of(const OpArgs& args) {
  const auto* packed = std::get_if<Packed<RmsNorm>>(&args);
  return packed != nullptr ? &packed->op : std::get_if<RmsNorm>(&args);
}

OpArgs fused(const Add& add, const OpArgs& norm) {
  if (const auto* packed = std::get_if<Packed<RmsNorm>>(&norm)) return Packed<AddRmsNorm>{{add, packed->op}, packed->pack};
  return AddRmsNorm{add, std::get<RmsNorm>(norm)};
}

bool share_a_buffer(const OpArgs& args) {
  Op op{"", args, {}, {}};
  collect_uses(op);
  return std::any_of(op.reads.begin(), op.reads.end(), [&](std::int32_t b) { return in(op.writes, b); });
}

// Who makes what a norm reads.
struct Maker {
  std::size_t at = kNone;
  const Add* add = nullptr;
  int sums = 0, writers = 0;

  Maker(const Program& program, std::int32_t buffer) {
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      const Op& op = program.ops[i];
      if (!in(op.writes, buffer)) continue;
      ++writers;
      at = i;
      add = std::get_if<Add>(&op.args);
      sums += add != nullptr || std::holds_alternative<AddRmsNorm>(op.args) || std::holds_alternative<Packed<AddRmsNorm>>(op.args);
    }
  }
};

const char* refusal_of(const Program& program, std::size_t at, const RmsNorm& norm, const Maker& maker) {
  if (maker.writers > 1) return "another op writes the sum";
  if (maker.add == nullptr) return "another norm of the sum is fused with it";
  const Add& add = *maker.add;
  if (maker.at > at) return "it stands before the sum";
  if (add.y != norm.x) return "it reads a part of the sum";
  for (std::size_t i = maker.at + 1; i < at; ++i) {
    if (in(program.ops[i].reads, add.y.buffer)) return "another op reads the sum before it";
  }
  if (written_between(program, add.a, maker.at, at) || written_between(program, add.b, maker.at, at)) {
    return "an input of the sum is written again before it";
  }
  return share_a_buffer(fused(add, program.ops[at].args)) ? "two of its tensors share a buffer" : nullptr;
}

}  // namespace

std::vector<Apart> fuse_add_norm(Program& program) {
  std::vector<Apart> apart;
  for (std::size_t at = 0; at < program.ops.size(); ++at) {
    Op& op = program.ops[at];
    const RmsNorm* norm = norm_of(op.args);
    if (norm == nullptr) continue;
    const Maker maker(program, norm->x.buffer);
    if (maker.sums == 0) continue;  // of no sum
    if (const char* why = refusal_of(program, at, *norm, maker)) {
      apart.push_back({op.name, why, kOption});
      continue;
    }
    op.args = fused(*maker.add, op.args);
    collect_uses(op);
    erase_op(program, maker.at);
    --at;
  }
  return apart;
}

}  // namespace nibble
