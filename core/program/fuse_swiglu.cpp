#include <algorithm>

#include "core/program/fuse.h"
#include "core/program/planner.h"
#include "core/program/uses.h"

namespace nibble {
namespace {

constexpr const char* kOption = "fused-swiglu";

bool reads_weight(const OpArgs& args, WeightId id) {
  if (const auto* op = std::get_if<Linear>(&args)) return op->weight == id;
  if (const auto* op = std::get_if<Embed>(&args)) return op->table == id;
  if (const auto* op = std::get_if<LinearSwiGlu>(&args)) return op->gate == id || op->up == id;
  if (const auto* op = std::get_if<GroupedLinear>(&args)) return id >= op->weights && id < op->weights + op->experts;
  return false;
}
bool read_once(const Program& program, WeightId id) {
  return std::count_if(program.ops.begin(), program.ops.end(),
                       [id](const Op& op) { return reads_weight(op.args, id); }) == 1;
}

// The Linear that writes this tensor, as it is and before op `end`, for that op alone.
class Maker {
 public:
  Maker(const Program& program, const Tensor& made, std::size_t end) {
    int writers = 0;
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      const Op& op = program.ops[i];
      if (in(op.writes, made.buffer)) {
        ++writers;
        at = i;
      }
      shared = shared || (i != end && in(op.reads, made.buffer));
    }
    shared = shared || program.logits.buffer == made.buffer;
    if (writers != 1 || at >= end) return;
    linear = std::get_if<Linear>(&program.ops[at].args);
    whole = linear != nullptr && linear->y == made;
  }
  std::size_t at = kNone;
  const Linear* linear = nullptr;
  bool whole = false, shared = false;
};

const char* refusal_of(const Program& program, std::size_t at, const Maker& gate, const Maker& up,
                       SwiGluRefusal refusal, std::span<const Weight> weights) {
  if (gate.linear == nullptr || up.linear == nullptr) return "gate or up is not made by one linear layer";
  if (!gate.whole || !up.whole || gate.at == up.at) return "gate or up is a part of what a linear layer makes";
  if (gate.shared || up.shared) return "another op reads gate or up";
  const Linear &g = *gate.linear, &u = *up.linear;
  const bool one_input = g.x == u.x && g.x_scales == u.x_scales && g.x_format == u.x_format;
  const std::size_t from = std::min(gate.at, up.at);
  if (!one_input || written_between(program, g.x, from, at) || written_between(program, g.x_scales, from, at)) {
    return "gate and up read different inputs";
  }
  if (g.fp8_unit || u.fp8_unit) return "activations are a8";
  const auto& y = std::get<SwiGlu>(program.ops[at].args).y;
  if (g.y.dtype != y.dtype || u.y.dtype != y.dtype) return "gate and up are not of the output's type";
  if (g.weight == u.weight || !read_once(program, g.weight) || !read_once(program, u.weight)) {
    return "another op reads a weight of theirs";
  }
  const Weight &a = weights[static_cast<std::size_t>(g.weight)], &b = weights[static_cast<std::size_t>(u.weight)];
  if (a.format != b.format || a.activation.kind != b.activation.kind) return "weights of gate and up differ in format";
  if (a.rows % 8 != 0) return "it has columns that are no multiple of 8";
  if (a.scale_layout == ScaleLayout::block128 || b.scale_layout == ScaleLayout::block128) {
    return "weights have scales of 128x128 blocks";
  }
  return refusal == nullptr ? nullptr : refusal(a, g.x_format);
}

}  // namespace

std::vector<Apart> fuse_swiglu(Program& program, SwiGluRefusal refusal, std::span<const Weight> weights) {
  std::vector<Apart> apart;
  for (std::size_t at = 0; at < program.ops.size(); ++at) {
    Op& op = program.ops[at];
    if (std::holds_alternative<Packed<SwiGlu>>(op.args)) apart.push_back({op.name, "its output is packed", kOption});
    const auto* swiglu = std::get_if<SwiGlu>(&op.args);
    if (swiglu == nullptr) continue;
    const Maker gate(program, swiglu->gate, at), up(program, swiglu->up, at);
    if (const char* why = refusal_of(program, at, gate, up, refusal, weights)) {
      apart.push_back({op.name, why, kOption});
      continue;
    }
    const Linear& linear = *gate.linear;
    op.args = LinearSwiGlu{linear.x, linear.x_scales, linear.x_format, linear.weight, up.linear->weight, swiglu->y};
    collect_uses(op);
    for (const std::size_t gone : {std::max(gate.at, up.at), std::min(gate.at, up.at)}) {
      erase_op(program, gone);
    }
    at -= 2;
  }
  return apart;
}

}  // namespace nibble
