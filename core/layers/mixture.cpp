#include "core/layers/mixture.h"

#include <algorithm>
#include <initializer_list>

#include "core/checkpoint/row_runs.h"
#include "nibble/error.h"

namespace nibble {
namespace {

void expect_one_format(const std::vector<Weight>& experts) {
  const Weight& first = experts.front();
  for (const Weight& w : experts) {
    if (w.format == first.format && w.scale_layout == first.scale_layout) continue;
    const auto text = [](const Weight& of) {
      return std::string(weight_format_name(of.format)) + " with " + scale_layout_name(of.scale_layout) + " scales";
    };
    throw Error(ErrorCode::unsupported, "[weights] " + w.name + ": expected the format of " + first.name + ", " +
                                            text(first) + ", found " + text(w));
  }
}

// Experts share one packed input, so one scale has to serve: the largest, which clips nothing that an
// expert's own would not.
void share_input_scale(std::initializer_list<std::vector<Weight>*> readers) {
  float largest = 0;
  for (const auto* experts : readers) {
    for (const Weight& w : *experts) largest = std::max(largest, w.activation.scale);
  }
  for (auto* experts : readers) {
    for (Weight& w : *experts) {
      if (w.activation.scale > 0) w.activation.scale = largest;
    }
  }
}

}  // namespace

MixtureLayer::MixtureLayer(const Weights& w, const MixtureConfig& c)
    : name_(w.name()), config_(c), gate(w / "gate", c.experts, c.hidden) {
  const Weights experts = w / "experts";
  if (!experts.has("0") && experts.has("gate_up_proj")) {
    read_stacked(experts);
  } else {
    read_single(experts);
  }
  for (const auto* all : {&gate_proj, &up_proj, &down_proj}) expect_one_format(*all);
  share_input_scale({&gate_proj, &up_proj});
  share_input_scale({&down_proj});
  if (c.shared_intermediate > 0) {
    shared_expert.emplace(w / "shared_expert", c.hidden, c.shared_intermediate);
    shared_expert_gate.emplace(w / "shared_expert_gate", 1, c.hidden);
  }
}

void MixtureLayer::read_single(const Weights& experts) {
  for (std::int64_t e = 0; e < config_.experts; ++e) {
    const Weights one = experts / static_cast<int>(e);
    gate_proj.push_back((one / "gate_proj").matrix(config_.intermediate, config_.hidden));
    up_proj.push_back((one / "up_proj").matrix(config_.intermediate, config_.hidden));
    down_proj.push_back((one / "down_proj").matrix(config_.hidden, config_.intermediate));
  }
}

void MixtureLayer::read_stacked(const Weights& experts) {
  const std::int64_t rows = config_.intermediate;
  const Weight gate_up = (experts / "gate_up_proj").stacked_matrix(config_.experts, 2 * rows, config_.hidden);
  const Weight down = (experts / "down_proj").stacked_matrix(config_.experts, config_.hidden, rows);
  const auto part = [](const Weight& stack, const Weights& name, std::int64_t first, std::int64_t count) {
    const RowRun run{first, count};
    return rows_of(stack, name.path(), {&run, 1});
  };
  for (std::int64_t e = 0; e < config_.experts; ++e) {
    const Weights one = experts / static_cast<int>(e);
    gate_proj.push_back(part(gate_up, one / "gate_proj", 2 * e * rows, rows));
    up_proj.push_back(part(gate_up, one / "up_proj", (2 * e + 1) * rows, rows));
    down_proj.push_back(part(down, one / "down_proj", e * config_.hidden, config_.hidden));
  }
}

Tensor MixtureLayer::operator()(Step& s, Tensor x) const {
  const std::string experts = name_ + ".experts";
  const ExpertRoute route = s.route(name_ + ".route", gate.f32(s, x), static_cast<std::int32_t>(config_.per_token),
                                    config_.normalised);
  const Tensor g = s.grouped_linear(experts + ".gate_proj", x, route, gate_proj);
  const Tensor u = s.grouped_linear(experts + ".up_proj", x, route, up_proj);
  const Tensor h = s.swiglu(experts + ".swiglu", g, u);
  const Tensor y = s.grouped_linear_f32(experts + ".down_proj", h, route, down_proj);
  if (!shared_expert) return s.combine(name_ + ".combine", y, route);
  return s.combine(name_ + ".combine", y, route, (*shared_expert)(s, x), shared_expert_gate->f32(s, x));
}

}  // namespace nibble
