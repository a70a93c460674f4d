// Ops that see one row at a time.
#include "backends/cpu/binder.h"
#include "backends/cpu/ops/any_linear.h"
#include "backends/cpu/ops/linear_fused.h"
#include "backends/cpu/ops/quantize.h"
#include "backends/cpu/ops/rowwise.h"

namespace nibble::cpu {
namespace {

using Kind = ActivationFormat::Kind;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// Columns of Quantize's outputs for K values; 0: there is no such tensor.
std::int64_t code_columns(Kind kind, std::int64_t k) {
  return kind == Kind::nvfp4_static ? k / 2 : k;
}
std::int64_t scale_columns(Kind kind, std::int64_t k) {
  switch (kind) {
    case Kind::nvfp4_static:
      return k / 16;
    case Kind::fp8_token:
      return 1;
    case Kind::fp8_token_group128:
      return ceil_div(k, 128);
    default:
      return 0;
  }
}
DType scale_type(Kind kind) {
  return kind == Kind::nvfp4_static ? DType::u8 : DType::f32;
}

}  // namespace

Binder::Call Binder::call(const Embed& a) {
  const PackedWeight& table = weight(a.table);
  const View y = f32("y", a.y, table.cols);
  expect(y.rows == Rows::tokens, "y", "one row for each token");
  expect(table.rows >= l_.sizes.vocab, "table", "a row for each token of the vocabulary");
  output_ = a.y;
  return [&l = l_, &table, y](const Step& step) {
    embed(l.parallel, table, step.tokens.data(), step.rows(), {y.data, y.stride});
  };
}

Binder::Call Binder::call(const RmsNorm& a) {
  const View x = f32("x", a.x), y = rows_like("y", a.y, x, x.cols);
  const float* const w = constant("weight", a.weight, x.cols);
  output_ = a.y;
  return [&l = l_, x, y, w, eps = a.eps](const Step& step) {
    rms_norm(l.isa, l.parallel, step.count(x.rows), x.cols, {x.data, x.stride}, w, eps,
             {y.data, y.stride});
  };
}

QuantizeArgs Binder::quantize_args(const ActivationFormat& format, const Tensor& codes,
                                   const Tensor& scales, std::int64_t cols, Rows rows) const {
  const Kind kind = format.kind;
  expect(kind != Kind::none, "format", "a quantised one");
  expect(kind != Kind::nvfp4_static || cols % 16 == 0, "x", "columns in multiples of 16");
  QuantizeArgs args;
  args.cols = cols;
  args.format = format;
  args.codes =
      reinterpret_cast<std::uint8_t*>(address("codes", codes, DType::u8, code_columns(kind, cols)));
  args.code_stride = codes.stride;
  expect(codes.rows == rows, "codes", "as many rows as the input");
  if (const std::int64_t across = scale_columns(kind, cols); across > 0) {
    args.scales = address("scales", scales, scale_type(kind), across);
    args.scale_stride = scales.stride;
    expect(scales.rows == rows, "scales", "as many rows as the input");
  }
  return args;
}

Binder::Call Binder::call(const Quantize& a) {
  const View x = f32("x", a.x);
  QuantizeArgs args = quantize_args(a.format, a.codes, a.scales, x.cols, x.rows);
  args.x = x.data;
  args.x_stride = x.stride;
  output_ = a.codes;
  return [&l = l_, args, rows = x.rows](const Step& step) {
    QuantizeArgs now = args;
    now.rows = step.count(rows);
    quantize(l.isa, l.parallel, now);
  };
}

LinearArgs Binder::linear_input(const Tensor& x, const Tensor& x_scales, const ActivationFormat& format,
                                std::int64_t cols) const {
  LinearArgs args;
  args.format = format;
  args.x_stride = x.stride;
  const Kind kind = format.kind;
  if (kind == Kind::none) {
    args.x = f32("x", x, cols).data;
    args.x_exponents = exponents(x);
    expect(l_.profile != Profile::sm70 || args.x_exponents != nullptr, "x", "rows of f16");
  } else {
    args.codes =
        reinterpret_cast<const std::uint8_t*>(address("x", x, DType::u8, code_columns(kind, cols)));
    if (const std::int64_t scales = scale_columns(kind, cols); scales > 0) {
      args.scales = address("x_scales", x_scales, scale_type(kind), scales);
      args.scale_stride = x_scales.stride;
      expect(x_scales.rows == x.rows, "x_scales", "as many rows as x");
    }
  }
  args.workspace = l_.workspace.data;
  return args;
}

Binder::Call Binder::call(const Linear& a) {
  const PackedWeight& w = weight(a.weight);
  LinearArgs args = linear_input(a.x, a.x_scales, a.x_format, w.cols);
  args.weight = &w;
  args.fp8_unit = a.fp8_unit;
  expect(!a.fp8_unit || (w.format == WeightFormat::fp8_e4m3 && a.x_format.kind == Kind::fp8_token), "fp8_unit",
         "an FP8 weight and fp8_token");
  const View y = f32("y", a.y, w.rows);
  expect(y.rows == a.x.rows, "y", "as many rows as x");
  args.y = y.data;
  args.y_stride = y.stride;
  output_ = a.y;
  return [&l = l_, args, rows = y.rows](const Step& step) {
    LinearArgs now = args;
    now.rows = step.count(rows);
    any_linear(l.profile, l.kernels, l.parallel, now);
  };
}

Binder::Call Binder::call(const GatedRmsNorm& a) {
  const View x = f32("x", a.x), z = rows_like("z", a.z, x, x.cols),
             y = rows_like("y", a.y, x, x.cols);
  expect(a.group > 0 && x.cols % a.group == 0, "group", "a divisor of the columns");
  const float* const w = constant("weight", a.weight, a.group);
  output_ = a.y;
  return [&l = l_, x, z, y, w, group = a.group, eps = a.eps](const Step& step) {
    gated_rms_norm(l.isa, l.parallel, step.count(x.rows), x.cols / group, group, {x.data, x.stride},
                   {z.data, z.stride}, w, eps, {y.data, y.stride});
  };
}

Binder::Call Binder::call(const SigmoidGate& a) {
  const std::int64_t cols = std::int64_t{a.heads} * a.head_dim;
  expect(a.heads > 0 && a.head_dim > 0, "heads", "at least one, of at least one column");
  const View x = f32("x", a.x, cols), gate = rows_like("gate", a.gate, x),
             y = rows_like("y", a.y, x, cols);
  // the gate may be a view into rows that hold queries as well: only its last head must lie inside
  const std::int64_t reach = (a.heads - 1) * a.gate_head_stride + a.head_dim;
  expect(a.gate_head_stride >= a.head_dim && reach <= gate.cols, "gate", "heads inside the row");
  output_ = a.y;
  return [&l = l_, x, gate, y, a](const Step& step) {
    sigmoid_gate(l.isa, l.parallel, step.count(x.rows), a.heads, a.head_dim, {x.data, x.stride},
                 {gate.data, gate.stride}, a.gate_head_stride, {y.data, y.stride});
  };
}

Binder::Call Binder::call(const SwiGlu& a) {
  const View gate = f32("gate", a.gate), up = rows_like("up", a.up, gate, gate.cols);
  const View y = rows_like("y", a.y, gate, gate.cols);
  output_ = a.y;
  return [&l = l_, gate, up, y](const Step& step) {
    swiglu(l.isa, l.parallel, step.count(gate.rows), gate.cols, {gate.data, gate.stride},
           {up.data, up.stride}, {y.data, y.stride});
  };
}

Binder::Call Binder::call(const Add& a) {
  const View in_a = f32("a", a.a), in_b = rows_like("b", a.b, in_a, in_a.cols);
  const View y = rows_like("y", a.y, in_a, in_a.cols);
  output_ = a.y;
  return [&l = l_, in_a, in_b, y](const Step& step) {
    add(l.isa, l.parallel, step.count(in_a.rows), in_a.cols, {in_a.data, in_a.stride},
        {in_b.data, in_b.stride}, {y.data, y.stride});
  };
}

Binder::Call Binder::call(const GatherRows& a) {
  const View x = f32("x", a.x), y = f32("y", a.y, x.cols);
  expect(x.rows == Rows::tokens, "x", "one row for each token");
  expect(y.rows == Rows::outputs, "y", "one row for each output");
  output_ = a.y;
  const std::int32_t* const from = exponents(a.x);
  std::int32_t* const to = exponents(a.y);
  expect((from == nullptr) == (to == nullptr), "y", "the type of x");
  return [&l = l_, x, y, from, to](const Step& step) {
    gather_rows(l.parallel, {x.data, x.stride}, step.batch.output_rows.data(), step.outputs(),
                x.cols, {y.data, y.stride});
    if (to == nullptr) return;
    for (std::size_t o = 0; o < step.batch.output_rows.size(); ++o) {
      to[o] = from[step.batch.output_rows[o]];
    }
  };
}

std::pair<std::string, std::string> implementation(const Loaded& l, const Op& op) {
  const std::string isa = isa_name(l.isa);
  const auto* linear = std::get_if<Linear>(&op.args);
  const auto* grouped = std::get_if<GroupedLinear>(&op.args);
  if (linear == nullptr && grouped == nullptr) return {op_kind(op.args), isa};
  const ActivationFormat& x = linear != nullptr ? linear->x_format : grouped->x_format;
  const WeightId id = linear != nullptr ? linear->weight : grouped->weights;
  const PackedWeight& w = l.weights[static_cast<std::size_t>(id)];
  std::string kind = std::string(linear != nullptr ? "linear " : "grouped linear ") + weight_format_name(w.format);
  if (x.kind != Kind::none) kind += std::string(" x ") + activation_format_name(x.kind);
  const bool fp8_unit = linear != nullptr && linear->fp8_unit && l.profile == Profile::sm90;
  const std::string where = w.layout == Layout::rows ? "rows of the mapped file, " : "panels of ";
  const char* const how = l.profile == Profile::f32          ? ""
                          : l.profile == Profile::bf16       ? "bf16 in "
                          : uses_fp4(l.profile, w.format, x) ? "block-scaled fused sums in "
                          : fp8_unit                         ? "FP8 fused sums in "
                                                             : "fused sums in ";
  return {kind, how + where + std::to_string(kPanelRows) + (w.layout == Layout::rows ? " at a time, " : ", ") +
                    kernels_name(l.kernels)};
}

}  // namespace nibble::cpu
