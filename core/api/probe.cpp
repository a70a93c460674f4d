#include "core/api/probe.h"

#include <algorithm>

#include "nibble/error.h"

namespace nibble {
namespace {

constexpr std::size_t kDecode = 0, kMixed = 1;  // order of the programs

std::optional<Section> section_of(const OpArgs& args) {
  return std::visit(
      [](const auto& a) -> std::optional<Section> {
        if constexpr (requires { a.section; }) return a.section;
        return std::nullopt;
      },
      args);
}

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::invalid_argument, "[parity] " + what);
}

void check(const ParityOptions& how) {
  if (how.prompt.empty()) refuse("prompt: expected at least one token, found none");
  if (how.decode < 0) refuse("decode: expected 0 or more steps, found " + std::to_string(how.decode));
  if (how.chunk < kPageTokens || how.chunk % kPageTokens != 0 || how.chunk > (1 << 20)) {
    refuse("chunk: expected a multiple of 64 from 64 to 1048576, found " + std::to_string(how.chunk));
  }
}

// Gate and up of SwiGLUs that `other` has with them.
void fold_linear_layers(const Program& other, const Program& program, std::set<std::string>& folded) {
  std::set<std::string> fused;
  for (const Op& op : other.ops) {
    if (std::holds_alternative<LinearSwiGlu>(op.args)) fused.insert(op.name);
  }
  for (const Op& op : program.ops) {
    const auto* swiglu = std::get_if<SwiGlu>(&op.args);
    if (swiglu == nullptr || !fused.contains(op.name)) continue;
    for (const Op& maker : program.ops) {
      const auto* linear = std::get_if<Linear>(&maker.args);
      if (linear == nullptr) continue;
      if (linear->y.buffer == swiglu->gate.buffer || linear->y.buffer == swiglu->up.buffer) folded.insert(maker.name);
    }
  }
}

// The parts of delta nets that `other` has as one.
void fold_delta_nets(const Program& other, const Program& program, std::set<std::string>& folded) {
  std::set<std::string> normed, plain, rules;
  for (const Op& op : other.ops) {
    if (const auto* net = std::get_if<DeltaNet>(&op.args)) (net->normed ? normed : plain).insert(op.name);
    if (std::holds_alternative<DeltaRule>(op.args)) rules.insert(op.name);
  }
  const auto fold_layer = [&](const DeltaRule& rule) {
    for (const Op& op : program.ops) {
      const auto* part = std::get_if<DeltaRule>(&op.args);
      const auto* conv = std::get_if<DeltaConv>(&op.args);
      const auto* gates = std::get_if<DeltaGates>(&op.args);
      if ((part != nullptr && part->layer == rule.layer) || (conv != nullptr && conv->layer == rule.layer) ||
          (gates != nullptr && gates->g.buffer == rule.g.buffer)) {
        folded.insert(op.name);
      }
    }
  };
  for (const Op& op : program.ops) {
    if (const auto* rule = std::get_if<DeltaRule>(&op.args)) {
      if (plain.contains(op.name)) fold_layer(*rule);
    }
    if (const auto* net = std::get_if<DeltaNet>(&op.args)) {
      if (!net->normed && rules.contains(op.name)) folded.insert(op.name);
    }
    const auto* norm = std::get_if<GatedRmsNorm>(&op.args);
    if (norm == nullptr || !normed.contains(op.name)) continue;
    for (const Op& maker : program.ops) {
      const auto* rule = std::get_if<DeltaRule>(&maker.args);
      if (rule != nullptr && rule->y.buffer == norm->x.buffer) fold_layer(*rule);
    }
  }
}

const RmsNorm* norm_of(const OpArgs& args) {
  const auto* packed = std::get_if<Packed<RmsNorm>>(&args);
  return packed != nullptr ? &packed->op : std::get_if<RmsNorm>(&args);
}
bool is_added_norm(const OpArgs& args) {
  return std::holds_alternative<AddRmsNorm>(args) || std::holds_alternative<Packed<AddRmsNorm>>(args);
}

// Sums that `other` has with their norm, and attention that it has with its gate.
void fold_behind(const Program& other, const Program& program, std::set<std::string>& folded) {
  std::set<std::string> fused;
  for (const Op& op : other.ops) {
    if (is_added_norm(op.args) || std::holds_alternative<GatedAttention>(op.args)) fused.insert(op.name);
  }
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    if (!fused.contains(program.ops[i].name)) continue;
    if (const RmsNorm* norm = norm_of(program.ops[i].args)) {  // sums share a buffer: the last one before it
      for (std::size_t m = i; m-- > 0;) {
        const auto* add = std::get_if<Add>(&program.ops[m].args);
        if (add == nullptr || add->y.buffer != norm->x.buffer) continue;
        folded.insert(program.ops[m].name);
        break;
      }
    }
    if (const auto* gate = std::get_if<SigmoidGate>(&program.ops[i].args)) {
      for (const Op& maker : program.ops) {
        const auto* attention = std::get_if<Attention>(&maker.args);
        if (attention != nullptr && attention->y.buffer == gate->x.buffer) folded.insert(maker.name);
      }
    }
  }
}

}  // namespace

Draft Probe::draft(const std::filesystem::path& model, const Device& on, const ParityOptions& how) {
  check(how);
  const auto positions = static_cast<std::int64_t>(how.prompt.size()) + how.decode;
  LoadOptions load;
  load.activations = how.activations;
  load.kv_cache_dtype = how.kv_cache_dtype;
  load.kv_tokens = positions;
  using Kind = ProgramClass::Kind;
  // Ops one by one, so that a difference is found where it arises and devices without fused ops can be
  // compared with those that have them; who asks for fused ops gets them.
  Device device = on;
  device.fused_pack = on.fused_pack.value_or(false);
  device.fused_swiglu = on.fused_swiglu.value_or(false);
  device.fused_delta = on.fused_delta.value_or(false);
  device.fused_linears = on.fused_linears.value_or(false);
  device.fused_add_norm = on.fused_add_norm.value_or(false);
  device.fused_gate = on.fused_gate.value_or(false);
  Draft d = draft_files(ModelFiles(model), device, load, {{Kind::decode, 1, 1}, {Kind::mixed, how.chunk, how.chunk}});
  if (positions > d.engine.capacity) {
    throw Error(ErrorCode::context_full, "[parity] a prompt of " + std::to_string(how.prompt.size()) +
                                             " tokens and " + std::to_string(how.decode) +
                                             " decode steps need " + std::to_string(positions) +
                                             " positions, the model has " +
                                             std::to_string(d.engine.capacity));
  }
  for (const std::int32_t t : how.prompt) {
    if (t < 0 || t >= d.engine.vocab) {
      refuse("prompt: token id " + std::to_string(t) + " is out of range: the model has ids 0 to " +
             std::to_string(d.engine.vocab - 1));
    }
  }
  return d;
}

Probe::Probe(Draft d, const ParityOptions& how, bool keep_weights) {
  if (keep_weights) {
    for (Weight& w : d.spec.weights) {
      if (w.materialize && w.codes.empty()) w.materialize(w);  // once, for both
    }
    spec_ = d.spec;
  } else {
    spec_.state = d.spec.state;
    spec_.programs = d.spec.programs;
  }
  capacity_ = d.engine.capacity;
  LoadOptions load;
  load.on_progress = how.on_load;
  load.on_message = how.on_message;
  move_weights(d, load);
  backend_ = std::move(d.backend);
  backend_->reset_slot(0);
}

const Program& Probe::program(Section section) const {
  return spec_.programs[section == Section::decode ? kDecode : kMixed];
}

const StepOutput& Probe::run(Section section, std::span<const std::int32_t> tokens, const Observer& observer,
                             const std::function<void(const Program&, const Batch&)>& before) {
  const auto rows = static_cast<std::int32_t>(tokens.size());
  if (position_ + rows > capacity_) throw Error(ErrorCode::context_full, "[parity] no position is left");
  batch_.clear();
  batch_.tokens.assign(tokens.begin(), tokens.end());
  batch_.ranges.push_back({section, 0, 0, rows, position_, keep_, 0});
  const std::int64_t pages = pages_for(position_ + rows);
  for (std::int32_t p = 0; p < pages; ++p) batch_.pages.push_back(p);
  for (std::int32_t r = 0; r < rows; ++r) {
    batch_.output_rows.push_back(r);
    SampleParams greedy;
    greedy.position = position_ + r + 1;
    batch_.sampling.push_back(greedy);
  }
  if (before) before(program(section), batch_);
  backend_->run(section == Section::decode ? kDecode : kMixed, batch_, output_, observer);
  position_ += rows;
  keep_ = section == Section::prefill ? 0 : rows;
  return output_;
}

HostState Probe::state() {
  std::vector<std::int32_t> pages;
  for (std::int32_t p = 0; p < pages_for(position_); ++p) pages.push_back(p);
  return backend_->export_state(0, keep_, pages, position_);
}

bool walk(const ParityOptions& how, ParityWork& work,
          const std::function<std::int32_t(const ProbeStep&, bool& more)>& step) {
  const std::span<const std::int32_t> prompt(how.prompt);
  const auto chunk = static_cast<std::size_t>(how.chunk);
  const auto chunks = static_cast<std::int64_t>((prompt.size() + chunk - 1) / chunk);
  const std::int64_t steps = chunks + how.decode;
  std::int32_t token = 0;
  ProbeStep now;
  const auto go = [&] {
    if (how.on_step && !how.on_step(now.number, steps)) {
      throw Error(ErrorCode::cancelled, "[parity] cancelled");
    }
    bool more = true;
    token = step(now, more);
    ++now.number;
    return more;
  };
  for (std::size_t begin = 0; begin < prompt.size(); begin += chunk) {
    now.tokens = prompt.subspan(begin, std::min(chunk, prompt.size() - begin));
    const bool more = go();
    work.prefill_rows += static_cast<std::int64_t>(now.tokens.size());
    ++work.prefill_steps;
    if (!more) return false;
  }
  work.tokens.push_back(token);
  now.section = Section::decode;
  for (int i = 0; i < how.decode; ++i) {
    const std::int32_t fed = token;
    now.tokens = std::span(&fed, 1);
    const bool more = go();
    ++work.decode_steps;
    work.tokens.push_back(token);
    if (!more) return false;
  }
  if (how.on_step) how.on_step(steps, steps);
  return true;
}

std::int64_t OpCursor::find(const Op& op) {
  for (std::size_t i = next_; i < program_.ops.size(); ++i) {
    if (same_op(program_.ops[i], op)) {
      next_ = i + 1;
      return static_cast<std::int64_t>(i);
    }
    const bool left_out = left_out_.contains(program_.ops[i].name);
    if (!left_out && !section_of(program_.ops[i].args)) break;  // an op that every step runs may not be left out
  }
  throw Error(ErrorCode::internal,
              "[parity] " + program_.cls.name() + ": " +
                  (next_ < program_.ops.size() ? "expected " + describe_op(program_.ops[next_]) : "expected no op") +
                  ", was shown " + describe_op(op));
}

bool same_op(const Op& a, const Op& b) {
  const auto swiglu = [](const OpArgs& args) {
    return std::holds_alternative<SwiGlu>(args) || std::holds_alternative<LinearSwiGlu>(args);
  };
  const auto norm = [](const OpArgs& args) {
    const auto* net = std::get_if<DeltaNet>(&args);
    return std::holds_alternative<GatedRmsNorm>(args) || (net != nullptr && net->normed);
  };
  const auto gate = [](const OpArgs& args) {
    return std::holds_alternative<SigmoidGate>(args) || std::holds_alternative<GatedAttention>(args);
  };
  const auto plain_norm = [](const OpArgs& args) { return norm_of(args) != nullptr || is_added_norm(args); };
  const bool same_kind = a.args.index() == b.args.index() || (swiglu(a.args) && swiglu(b.args)) ||
                         (norm(a.args) && norm(b.args)) || (gate(a.args) && gate(b.args)) ||
                         (plain_norm(a.args) && plain_norm(b.args) && packs(a.args) == packs(b.args));
  return same_kind && a.name == b.name && section_of(a.args) == section_of(b.args);
}

void expect_ops_one_by_one(const Device& on, const char* why) {
  const auto expect_off = [why](const char* name, const std::optional<bool>& fused) {
    if (fused.value_or(false)) refuse(std::string(name) + ": expected off (" + why + "), found on");
  };
  expect_off("fused-pack", on.fused_pack);
  expect_off("fused-swiglu", on.fused_swiglu);
  expect_off("fused-delta", on.fused_delta);
  expect_off("fused-add-norm", on.fused_add_norm);
  expect_off("fused-gate", on.fused_gate);
}

std::set<std::string> folded_into(const Program& other, const Program& program) {
  std::set<std::string> folded;
  fold_linear_layers(other, program, folded);
  fold_delta_nets(other, program, folded);
  fold_behind(other, program, folded);
  return folded;
}

bool gives_logits(const Program& program, const Op& op) {
  const auto* linear = std::get_if<Linear>(&op.args);
  return linear != nullptr && linear->y.buffer == program.logits.buffer;
}

std::string describe_op(const Op& op) {
  const auto section = section_of(op.args);
  return op.name + " (" + op_kind(op.args) + (section ? std::string(" of ") + section_name(*section) : "") + ")";
}

ParityDevice describe_device(const Device& on, const DeviceInfo& info) {
  return {on.text(), info.backend, info.name, info.profile, info.kernels, info.threads};
}

}  // namespace nibble
