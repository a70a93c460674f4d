// step_experts.cpp: how a mixture of experts is described.
#include "core/program/step.h"
#include "nibble/error.h"

namespace nibble {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw Error(ErrorCode::internal, "[" + name + "] " + what);
}

std::string text(std::int64_t n) { return std::to_string(n); }

void expect_alike(const std::string& name, std::span<const Weight> all) {
  if (all.empty()) refuse(name, "expected at least one expert, found none");
  const Weight& first = all.front();
  for (const Weight& w : all) {
    if (w.rows != first.rows || w.cols != first.cols) {
      refuse(w.name, "expected the shape of the first expert, [" + text(first.rows) + ", " + text(first.cols) +
                         "], found [" + text(w.rows) + ", " + text(w.cols) + "]");
    }
    if (w.format != first.format || w.scale_layout != first.scale_layout) {
      refuse(w.name, std::string("expected the format of the first expert, ") + weight_format_name(first.format) +
                         " with " + scale_layout_name(first.scale_layout) + " scales, found " +
                         weight_format_name(w.format) + " with " + scale_layout_name(w.scale_layout));
    }
  }
}

}  // namespace

WeightId Tracer::experts(const std::string& name, std::span<const Weight> all) {
  expect_alike(name, all);
  const WeightId first = weight(all.front());
  for (std::size_t e = 1; e < all.size(); ++e) {
    if (weight(all[e]) != first + static_cast<WeightId>(e)) {
      refuse(name, "expected experts that no other op has used in another order");
    }
  }
  return first;
}

ExpertRoute Step::route(const std::string& name, Tensor logits, std::int32_t experts_per_token, bool normalised) {
  std::int32_t& known = program_.experts_per_token;
  if (experts_per_token < 1 || experts_per_token > logits.cols) {
    refuse(name, "expected 1 to " + text(logits.cols) + " experts a token, found " + text(experts_per_token));
  }
  if (logits.cols > kMostExperts) {
    refuse(name, "expected at most " + text(kMostExperts) + " experts, found " + text(logits.cols));
  }
  if (logits.rows != Rows::tokens) refuse(name, "expected logits of every token");
  if (known != 0 && known != experts_per_token) {
    refuse(name, "expected " + text(known) + " experts a token as in other layers, found " + text(experts_per_token));
  }
  known = experts_per_token;
  const ExpertRoute op{logits,
                       experts_per_token,
                       normalised,
                       make(Rows::tokens, experts_per_token, DType::f32),
                       make(Rows::tokens, experts_per_token, DType::i32),
                       make(Rows::routed, 1, DType::i32),
                       make(Rows::tokens, experts_per_token, DType::i32),
                       make(Rows::one, logits.cols + 1, DType::i32)};
  emit(name, op);
  return op;
}

Tensor Step::grouped_linear(const std::string& name, Tensor x, const ExpertRoute& route,
                            std::span<const Weight> experts) {
  return grouped_linear(name, x, route, experts, tracer_.options().operand);
}

Tensor Step::grouped_linear_f32(const std::string& name, Tensor x, const ExpertRoute& route,
                                std::span<const Weight> experts) {
  return grouped_linear(name, x, route, experts, DType::f32);
}

Tensor Step::grouped_linear(const std::string& name, Tensor x, const ExpertRoute& route,
                            std::span<const Weight> experts, DType y) {
  const WeightId first = tracer_.experts(name, experts);
  const Weight& w = experts.front();
  if (static_cast<std::int64_t>(experts.size()) != route.logits.cols) {
    refuse(name, "expected " + text(route.logits.cols) + " experts, found " + text(std::ssize(experts)));
  }
  if (x.cols != w.cols) refuse(name, "expected input columns " + text(w.cols) + ", found " + text(x.cols));
  GroupedLinear op{x, {}, {}, route.order, route.starts, first, static_cast<std::int32_t>(experts.size()), {}};
  if (tracer_.options().activations == Activations::declared) {
    for (const Weight& e : experts) {
      if (!(e.activation == w.activation)) {
        throw Error(ErrorCode::unsupported,
                    "[" + e.name + "] expected the input format and scale that " + w.name + " has, found " +
                        (e.activation.kind == ActivationFormat::Kind::none || w.activation.kind == ActivationFormat::Kind::none
                             ? "a format and a scale for one of them only"
                             : "others") +
                        ": experts share one packed input (activations a16 run)");
      }
    }
  }
  // Mode a8 leaves experts as a16 has them.
  if (tracer_.options().activations == Activations::declared &&
      w.activation.kind != ActivationFormat::Kind::none) {
    const Quantize& packed = quantised(name, x, w.activation);
    op.x = packed.codes;
    op.x_scales = packed.scales;
    op.x_format = w.activation;
  }
  op.y = make(Rows::routed, w.rows, y);
  emit(name, op);
  return op.y;
}

Tensor Step::combine(const std::string& name, Tensor x, const ExpertRoute& route, Tensor shared, Tensor shared_gate) {
  if (x.rows != Rows::routed) refuse(name, "expected a row for each sorted place");
  if (shared.valid() != shared_gate.valid()) refuse(name, "expected a shared expert with its gate, or neither");
  if (shared.valid() && (shared.cols != x.cols || shared_gate.cols != 1)) {
    refuse(name, "expected a shared expert of " + text(x.cols) + " columns and a gate of 1, found " +
                     text(shared.cols) + " and " + text(shared_gate.cols));
  }
  const ExpertCombine op{x, route.weights, route.place, shared, shared_gate, make(Rows::tokens, x.cols, DType::f32)};
  emit(name, op);
  return op.y;
}

}  // namespace nibble
