#include <algorithm>
#include <array>

#include "core/program/fuse.h"
#include "core/program/planner.h"
#include "core/program/uses.h"

namespace nibble {
namespace {

constexpr const char* kOption = "fused-gate";

// The ops that make what a gate reads.
struct Makers {
  std::vector<std::size_t> at;  // ascending
  const Attention* first = nullptr;
  bool whole = true;  // one for each section of the class, alike but for it, and nothing else

  Makers(const Program& program, std::int32_t buffer) {
    std::array<int, 3> met{};
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      if (!in(program.ops[i].writes, buffer)) continue;
      const auto* part = std::get_if<Attention>(&program.ops[i].args);
      if (part == nullptr) {
        whole = false;
        continue;
      }
      if (first == nullptr) first = part;
      ++met[static_cast<std::size_t>(part->section)];
      whole = whole && part->q == first->q && part->y == first->y && part->layer == first->layer && part->scale == first->scale;
      at.push_back(i);
    }
    for (const Section s : {Section::decode, Section::verify, Section::prefill}) {
      whole = whole && met[static_cast<std::size_t>(s)] == (program.cls.has(s) ? 1 : 0);
    }
  }
};

bool read_by_another(const Program& program, std::int32_t buffer, std::size_t reader) {
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    if (i != reader && in(program.ops[i].reads, buffer)) return true;
  }
  return program.logits.buffer == buffer;
}

// What attention reads: queries, and the keys and values of its layer.
bool inputs_written_between(const Program& program, const Attention& attention, std::size_t from, std::size_t until) {
  for (std::size_t i = from; i < until; ++i) {
    const auto* keys = std::get_if<QkNormRope>(&program.ops[i].args);
    if (keys != nullptr && keys->layer == attention.layer) return true;
  }
  return written_between(program, attention.q, from, until);
}

GatedAttention fused(const Attention& attention, const SigmoidGate& gate) {
  GatedAttention both{attention, gate};
  both.attention.y = both.gate.x = gate.y;
  return both;
}

bool share_a_buffer(const GatedAttention& both) {
  Op op{"", both, {}, {}};
  collect_uses(op);
  return std::any_of(op.reads.begin(), op.reads.end(), [&](std::int32_t b) { return in(op.writes, b); });
}

const char* refusal_of(const Program& program, std::size_t at, const SigmoidGate& gate, const Makers& makers) {
  if (!makers.whole) return "its input is not made by one attention for each section";
  const Attention& attention = *makers.first;
  if (makers.at.back() > at) return "it stands before attention";
  if (read_by_another(program, gate.x.buffer, at)) return "another op reads what attention makes";
  if (gate.x != attention.y) return "it reads a part of what attention makes";
  const Tensor &x = attention.y, &y = gate.y;
  if (y.dtype != x.dtype || y.rows != x.rows || y.cols != x.cols) return "its output is not of its input's shape and type";
  if (gate.heads != attention.shape.heads || gate.head_dim != attention.shape.head_dim) return "its heads are not attention's";
  if (inputs_written_between(program, attention, makers.at.front(), at)) return "an input of attention is written again before it";
  return share_a_buffer(fused(attention, gate)) ? "two of its tensors share a buffer" : nullptr;
}

}  // namespace

std::vector<Apart> fuse_gate(Program& program) {
  std::vector<Apart> apart;
  for (std::size_t at = 0; at < program.ops.size(); ++at) {
    Op& op = program.ops[at];
    const auto* gate = std::get_if<SigmoidGate>(&op.args);
    if (gate == nullptr) continue;
    const Makers makers(program, gate->x.buffer);
    if (makers.first == nullptr) continue;  // not of attention
    if (const char* why = refusal_of(program, at, *gate, makers)) {
      apart.push_back({op.name, why, kOption});
      continue;
    }
    op.args = fused(*makers.first, *gate);
    collect_uses(op);
    for (auto gone = makers.at.rbegin(); gone != makers.at.rend(); ++gone) erase_op(program, *gone);
    at -= makers.at.size();
  }
  return apart;
}

}  // namespace nibble
