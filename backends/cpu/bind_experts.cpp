// Ops of a mixture of experts.
#include "backends/cpu/binder.h"
#include "backends/cpu/ops/experts.h"

namespace nibble::cpu {

std::int32_t* Binder::indices(const char* field, const Tensor& t, Rows rows, std::int64_t cols) const {
  auto* const at = reinterpret_cast<std::int32_t*>(address(field, t, DType::i32, cols));
  expect(t.rows == rows && t.stride == cols, field, "rows of their kind without gaps");
  return at;
}

Binder::Call Binder::call(const ExpertRoute& a) {
  ExpertRouteArgs args;
  const std::int64_t k = a.experts_per_token;
  const View logits = f32("logits", a.logits);
  expect(logits.rows == Rows::tokens, "logits", "one row for each token");
  expect(logits.cols <= kMostExperts, "logits", "at most 1,024 experts");
  expect(k >= 1 && k <= logits.cols, "experts_per_token", "1 to the number of experts");
  expect_equal("experts_per_token", program_.experts_per_token, k);
  expect(program_.rows_of(Rows::routed) < std::int64_t{1} << 31, "order", "below 2^31 sorted places");
  const View weights = rows_like("weights", a.weights, logits, k);
  args.experts = static_cast<std::int32_t>(logits.cols);
  args.per_token = a.experts_per_token;
  args.normalised = a.normalised;
  args.logits = {logits.data, logits.stride};
  args.weights = {weights.data, weights.stride};
  args.ids = indices("experts", a.experts, Rows::tokens, k);
  args.order = indices("order", a.order, Rows::routed, 1);
  args.place = indices("place", a.place, Rows::tokens, k);
  args.starts = indices("starts", a.starts, Rows::one, logits.cols + 1);
  output_ = a.weights;
  return [&l = l_, args](const Step& step) {
    ExpertRouteArgs now = args;
    now.rows = step.rows();
    expert_route(l.isa, l.parallel, now);
  };
}

Binder::Call Binder::call(const GroupedLinear& a) {
  expect(a.experts >= 1 && a.experts <= kMostExperts, "experts", "1 to 1,024");
  const PackedWeight& first = weight(a.weights);
  weight(a.weights + a.experts - 1);
  GroupedLinearArgs args;
  const std::span<const PackedWeight> all(l_.weights);
  args.weights = all.subspan(static_cast<std::size_t>(a.weights), static_cast<std::size_t>(a.experts));
  for (const PackedWeight& w : args.weights) {
    expect(w.format == first.format && w.rows == first.rows && w.cols == first.cols &&
               (w.block == nullptr) == (first.block == nullptr),
           "weights", "experts of one format and shape");
  }
  args.linear = linear_input(a.x, a.x_scales, a.x_format, first.cols);
  const bool by_token = a.x.rows == Rows::tokens;
  expect(by_token || a.x.rows == Rows::routed, "x", "one row for each token or sorted place");
  args.per_token = by_token ? program_.experts_per_token : 0;
  args.order = indices("order", a.order, Rows::routed, 1);
  args.starts = indices("starts", a.starts, Rows::one, a.experts + 1);
  args.gather = l_.workspace.data + l_.workspace.gather;
  const View y = f32("y", a.y, first.rows);
  expect(y.rows == Rows::routed, "y", "one row for each sorted place");
  args.linear.y = y.data;
  args.linear.y_stride = y.stride;
  output_ = a.y;
  return [&l = l_, args](const Step&) { grouped_linear(l.profile, l.kernels, l.parallel, args); };
}

Binder::Call Binder::call(const ExpertCombine& a) {
  ExpertCombineArgs args;
  const std::int64_t k = program_.experts_per_token;
  const View x = f32("x", a.x), y = f32("y", a.y, x.cols);
  expect(x.rows == Rows::routed, "x", "one row for each sorted place");
  expect(y.rows == Rows::tokens, "y", "one row for each token");
  const View weights = rows_like("weights", a.weights, y, k);
  args.cols = x.cols;
  args.per_token = program_.experts_per_token;
  args.x = {x.data, x.stride};
  args.weights = {weights.data, weights.stride};
  args.place = indices("place", a.place, Rows::tokens, k);
  args.y = {y.data, y.stride};
  expect(a.shared.valid() == a.shared_gate.valid(), "shared_gate", "one where there is a shared expert");
  if (a.shared.valid()) {
    const View shared = rows_like("shared", a.shared, y, x.cols), gate = rows_like("shared_gate", a.shared_gate, y, 1);
    args.shared = {shared.data, shared.stride};
    args.shared_gate = {gate.data, gate.stride};
  }
  output_ = a.y;
  return [&l = l_, args](const Step& step) {
    ExpertCombineArgs now = args;
    now.rows = step.rows();
    expert_combine(l.isa, l.parallel, now);
  };
}

}  // namespace nibble::cpu
