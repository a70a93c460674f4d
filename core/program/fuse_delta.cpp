#include <array>
#include <set>

#include "core/program/fuse.h"
#include "core/program/planner.h"
#include "core/program/uses.h"

namespace nibble {
namespace {

constexpr const char* kOption = "fused-delta";
constexpr const char* kShared = "two of its tensors share a buffer";

bool alike(const DeltaConv& a, const DeltaConv& b) { return a.x == b.x && a.weight == b.weight && a.y == b.y; }
bool alike(const DeltaRule& a, const DeltaRule& b) {
  return a.qkv == b.qkv && a.g == b.g && a.beta == b.beta && a.y == b.y;
}

// Ops of this kind of one layer of the state (which fixes their shape).
template <class Part>
struct Sections {
  std::vector<std::size_t> at;
  const Part* first = nullptr;
  bool whole = true;  // one for each section of the class, alike but for it

  Sections(const Program& program, std::int32_t layer) {
    std::array<int, 3> met{};
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      const auto* part = std::get_if<Part>(&program.ops[i].args);
      if (part == nullptr || part->layer != layer) continue;
      if (first == nullptr) first = part;
      ++met[static_cast<std::size_t>(part->section)];
      whole = whole && alike(*part, *first);
      at.push_back(i);
    }
    for (const Section s : {Section::decode, Section::verify, Section::prefill}) {
      whole = whole && met[static_cast<std::size_t>(s)] == (program.cls.has(s) ? 1 : 0);
    }
  }
};

class Layer {
 public:
  Layer(const Program& program, std::int32_t layer)
      : program_(program), convs_(program, layer), rules_(program, layer) {
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      const auto* op = std::get_if<DeltaGates>(&program.ops[i].args);
      if (op == nullptr || op->g != rules_.first->g || op->beta != rules_.first->beta) continue;
      gates_ = op;
      gates_at_ = i;
    }
    parts_ = rules_.at;
    parts_.insert(parts_.end(), convs_.at.begin(), convs_.at.end());
    if (gates_ != nullptr) parts_.push_back(gates_at_);
    std::sort(parts_.begin(), parts_.end());
  }

  std::size_t last_rule() const { return rules_.at.back(); }
  const std::vector<std::size_t>& parts() const { return parts_; }
  DeltaNet without_norm() const { return {*convs_.first, *gates_, *rules_.first, false, {}}; }
  DeltaNet with_norm(std::size_t norm) const {
    return {*convs_.first, *gates_, *rules_.first, true, std::get<GatedRmsNorm>(program_.ops[norm].args)};
  }

  // Why convolution, gates and rule are no one op in the last rule's place; null: they may be.
  const char* refusal() const {
    if (!convs_.whole || !rules_.whole) return "it has not one convolution and one rule for each section";
    const DeltaRule& rule = *rules_.first;
    const std::size_t first_rule = rules_.at.front();
    if (gates_ == nullptr || rule.qkv != convs_.first->y || convs_.at.back() > first_rule || gates_at_ > first_rule) {
      return "the rule does not read what gates and a convolution made before it";
    }
    for (const Tensor* t : {&convs_.first->y, &gates_->g, &gates_->beta}) {
      if (used_by_others(*t, 0, program_.ops.size())) return "another op uses its gates or its convolution's output";
    }
    if (used_by_others(rule.y, first_rule, last_rule())) return "another op uses its output before it is whole";
    if (inputs_written_before(last_rule())) return "an input of it is written again before the rule";
    return share_a_buffer(without_norm()) ? kShared : nullptr;
  }

  // Ops that norm the rule's output.
  std::vector<std::size_t> norms() const {
    std::vector<std::size_t> all;
    for (const std::size_t i : readers()) {
      const OpArgs& args = program_.ops[i].args;
      const auto* packed = std::get_if<Packed<GatedRmsNorm>>(&args);
      const auto* norm = packed != nullptr ? &packed->op : std::get_if<GatedRmsNorm>(&args);
      if (norm != nullptr && norm->x.buffer == rules_.first->y.buffer) all.push_back(i);
    }
    return all;
  }
  // Why this one stays behind the fused op; null: it is a part of it.
  const char* refusal_of(std::size_t norm) const {
    const auto* op = std::get_if<GatedRmsNorm>(&program_.ops[norm].args);
    if (op == nullptr) return "its output is packed";
    const DeltaRule& rule = *rules_.first;
    if (readers().size() > 1 || program_.logits.buffer == rule.y.buffer) return "another op reads the rule's output";
    if (norm < last_rule()) return "it stands before the rule";
    if (written_by_others(rule.y)) return "another op writes the rule's output";
    if (op->x != rule.y) return "it reads a part of the rule's output";
    if (op->group != rule.shape.value_dim) return "its groups are not the rule's heads";
    if (inputs_written_before(norm)) return "an input of the rule is written again before it";
    return share_a_buffer(with_norm(norm)) ? kShared : nullptr;
  }

 private:
  bool own(std::size_t op) const { return std::binary_search(parts_.begin(), parts_.end(), op); }
  std::vector<std::size_t> readers() const {  // of the rule's output
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      if (in(program_.ops[i].reads, rules_.first->y.buffer)) all.push_back(i);
    }
    return all;
  }
  bool written_by_others(const Tensor& t) const {
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      if (!own(i) && in(program_.ops[i].writes, t.buffer)) return true;
    }
    return false;
  }
  bool used_by_others(const Tensor& t, std::size_t from, std::size_t until) const {
    for (std::size_t i = from; i < until; ++i) {
      const Op& op = program_.ops[i];
      if (!own(i) && (in(op.reads, t.buffer) || in(op.writes, t.buffer))) return true;
    }
    return program_.logits.buffer == t.buffer && until == program_.ops.size();
  }
  bool inputs_written_before(std::size_t place) const {
    return written_between(program_, convs_.first->x, convs_.at.front(), place) ||
           written_between(program_, gates_->a, gates_at_, place) ||
           written_between(program_, gates_->b, gates_at_, place);
  }
  // One op may write what its parts, one after the other, only wrote when they had read an input.
  static bool share_a_buffer(const DeltaNet& net) {
    Op op{"", net, {}, {}};
    collect_uses(op);
    const std::size_t outputs = net.normed ? 5 : 4;  // with what lies between the parts
    return op.writes.size() != outputs ||
           std::any_of(op.reads.begin(), op.reads.end(), [&](std::int32_t b) { return in(op.writes, b); });
  }

  const Program& program_;
  Sections<DeltaConv> convs_;
  Sections<DeltaRule> rules_;
  const DeltaGates* gates_ = nullptr;
  std::size_t gates_at_ = kNone;
  std::vector<std::size_t> parts_;  // ascending
};

void fuse_layer(Program& program, std::int32_t id, std::vector<Apart>& apart) {
  const Layer layer(program, id);
  std::size_t place = layer.last_rule();
  if (const char* why = layer.refusal()) {
    apart.push_back({program.ops[place].name, why, kOption});
    return;
  }
  DeltaNet net = layer.without_norm();
  for (const std::size_t norm : layer.norms()) {
    if (const char* why = layer.refusal_of(norm)) {
      apart.push_back({program.ops[norm].name, why, kOption});
    } else {
      net = layer.with_norm(norm);
      place = norm;
      // The norm reads a group before it writes it: the rule's output needs no memory of its own.
      const Tensor &made = net.rule.y, &y = net.norm.y;
      if (y.dtype == made.dtype && y.rows == made.rows && y.cols == made.cols) net.rule.y = net.norm.x = y;
    }
  }
  const std::vector<std::size_t> parts = layer.parts();
  program.ops[place].args = net;
  collect_uses(program.ops[place]);
  for (auto gone = parts.rbegin(); gone != parts.rend(); ++gone) {
    if (*gone != place) erase_op(program, *gone);
  }
}

}  // namespace

std::vector<Apart> fuse_delta(Program& program) {
  std::set<std::int32_t> layers;
  for (const Op& op : program.ops) {
    if (const auto* rule = std::get_if<DeltaRule>(&op.args)) layers.insert(rule->layer);
  }
  std::vector<Apart> apart;
  for (const std::int32_t layer : layers) fuse_layer(program, layer, apart);
  return apart;
}

}  // namespace nibble
