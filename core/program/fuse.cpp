#include "core/program/fuse.h"

#include <algorithm>
#include <optional>

#include "core/program/planner.h"
#include "core/program/uses.h"

namespace nibble {
namespace {

// The only op that writes `buffer`, if it comes before `end`.
std::size_t writer_of(const Program& program, std::int32_t buffer, std::size_t end) {
  std::size_t found = kNone;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    if (!in(program.ops[i].writes, buffer)) continue;
    if (found != kNone || i >= end) return kNone;
    found = i;
  }
  return found;
}

bool read_by_another(const Program& program, std::int32_t buffer, std::size_t reader) {
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    if (i != reader && in(program.ops[i].reads, buffer)) return true;
  }
  return program.logits.buffer == buffer;
}

template <class First>
std::optional<OpArgs> packed(const OpArgs& args, const Quantize& behind, bool keep, bool wanted) {
  const auto* first = std::get_if<First>(&args);
  if (first == nullptr || !wanted || first->y != behind.x) return std::nullopt;
  Packed<First> both{*first, {behind.format, behind.codes, behind.scales}};
  if (!keep) both.op.y.buffer = -1;
  return both;
}

}  // namespace

void fuse(Program& program, const Fusions& which) {
  for (std::size_t at = 0; at < program.ops.size();) {
    const auto* quantize = std::get_if<Quantize>(&program.ops[at].args);
    const std::size_t maker = quantize == nullptr ? kNone : writer_of(program, quantize->x.buffer, at);
    if (maker == kNone) {
      ++at;
      continue;
    }
    const bool keep = read_by_another(program, quantize->x.buffer, at);
    const OpArgs& made_by = program.ops[maker].args;
    std::optional<OpArgs> both = packed<RmsNorm>(made_by, *quantize, keep, which.rms_norm_pack);
    if (!both) both = packed<GatedRmsNorm>(made_by, *quantize, keep, which.gated_rms_norm_pack);
    if (!both) both = packed<SwiGlu>(made_by, *quantize, keep, which.swiglu_pack);
    if (!both) {
      ++at;
      continue;
    }
    program.ops[maker].args = std::move(*both);
    collect_uses(program.ops[maker]);
    erase_op(program, at);
  }
}

}  // namespace nibble
