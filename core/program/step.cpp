#include "core/program/step.h"

#include <algorithm>
#include <cmath>

#include "core/program/planner.h"
#include "nibble/error.h"

namespace nibble {
namespace {

[[noreturn]] void mismatch(const std::string& name, const char* what, std::int64_t expected,
                           std::int64_t found) {
  throw Error(ErrorCode::internal, "[" + name + "] expected " + what + " " + std::to_string(expected) +
                                       ", found " + std::to_string(found));
}

void expect_cols(const std::string& name, const char* what, const Tensor& t, std::int64_t cols) {
  if (t.cols != cols) mismatch(name, what, cols, t.cols);
}

bool operator==(const DeltaShape& a, const DeltaShape& b) {
  return a.key_heads == b.key_heads && a.value_heads == b.value_heads && a.key_dim == b.key_dim &&
         a.value_dim == b.value_dim && a.conv_kernel == b.conv_kernel;
}

bool operator==(const AttentionShape& a, const AttentionShape& b) {
  return a.heads == b.heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim;
}

// Every class must describe the same state, in the same order.
template <class Shape>
std::int32_t state_layer(std::vector<Shape>& layers, std::int32_t index, const Shape& shape,
                         const std::string& name) {
  if (index == static_cast<std::int32_t>(layers.size())) layers.push_back(shape);
  if (index > static_cast<std::int32_t>(layers.size()) ||
      !(layers[static_cast<std::size_t>(index)] == shape)) {
    throw Error(ErrorCode::internal, "[" + name + "] state differs between program classes");
  }
  return index;
}

// Of a linear layer's input in a mode; Kind::none: as it is.
ActivationFormat input_format(Activations mode, const Weight& w) {
  switch (mode) {
    case Activations::a16:
      return {};
    case Activations::declared:
      return w.activation;
    case Activations::a8:
      if (w.format != WeightFormat::nvfp4 && w.format != WeightFormat::fp8_e4m3) return {};
      return {ActivationFormat::Kind::fp8_token, 0};
  }
  return {};
}

}  // namespace

WeightId Tracer::weight(const Weight& w) {
  const auto [at, fresh] = weights_.try_emplace(&w, static_cast<std::int32_t>(spec_.weights.size()));
  if (fresh) spec_.weights.push_back(w);
  return at->second;
}

ConstantId Tracer::constant(const std::string& name, const std::vector<float>& data,
                            std::vector<std::int64_t> shape) {
  const auto [at, fresh] =
      constants_.try_emplace(&data, static_cast<std::int32_t>(spec_.constants.size()));
  if (fresh) {
    std::int64_t count = 1;
    for (const std::int64_t d : shape) count *= d;
    if (count != static_cast<std::int64_t>(data.size())) {
      mismatch(name, "elements", count, static_cast<std::int64_t>(data.size()));
    }
    spec_.constants.push_back({name, std::move(shape), data});
  }
  return at->second;
}

ConstantId Tracer::rope(const RopeConfig& config) {
  for (const auto& [known, id] : ropes_) {
    if (known == config) return id;
  }
  const auto id = static_cast<ConstantId>(spec_.constants.size());
  spec_.constants.push_back(
      {"rope", {how_.max_positions, config.rotary_dim}, rope_table(config, how_.max_positions)});
  ropes_.emplace_back(config, id);
  return id;
}

void Tracer::fuse(Program& program) {
  nibble::fuse(program, how_.fusions);
  const auto note = [this](std::vector<Apart> apart) {
    for (Apart& one : apart) {
      if (std::find(apart_.begin(), apart_.end(), one) == apart_.end()) apart_.push_back(std::move(one));
    }
  };
  if (how_.fusions.linear_swiglu) note(fuse_swiglu(program, how_.fusions.refusal, spec_.weights));
  if (how_.fusions.delta_net) note(fuse_delta(program));
  if (how_.fusions.add_norm) note(fuse_add_norm(program));
  if (how_.fusions.gated_attention) note(fuse_gate(program));
}

Step::Step(Tracer& tracer, const ProgramClass& cls) : tracer_(tracer) { program_.cls = cls; }

Tensor Step::make(Rows rows, std::int64_t cols, DType dtype) {
  Tensor t;
  t.buffer = static_cast<std::int32_t>(program_.buffers.size());
  t.dtype = dtype;
  t.rows = rows;
  t.cols = t.stride = cols;
  program_.buffers.push_back(
      {rows, cols, dtype, program_.rows_of(rows) * cols * dtype_bits(dtype) / 8, 0});
  return t;
}

void Step::emit(std::string name, OpArgs args) {
  Op op{std::move(name), std::move(args), {}, {}};
  collect_uses(op);
  program_.ops.push_back(std::move(op));
}

Tensor Step::embed(const std::string& name, const Weight& table) {
  Embed op{tracer_.weight(table), make(Rows::tokens, table.cols, DType::f32)};
  emit(name, op);
  return op.y;
}

Tensor Step::rms_norm(const std::string& name, Tensor x, const std::vector<float>& weight, float eps) {
  expect_cols(name, "columns", x, static_cast<std::int64_t>(weight.size()));
  RmsNorm op{x, tracer_.constant(name, weight, {x.cols}), eps,
             make(x.rows, x.cols, tracer_.options().operand)};
  emit(name, op);
  return op.y;
}

Tensor Step::linear(const std::string& name, Tensor x, const Weight& weight) {
  return linear(name, x, weight, tracer_.options().operand);
}

Tensor Step::linear_f32(const std::string& name, Tensor x, const Weight& weight) {
  return linear(name, x, weight, DType::f32);
}

Tensor Step::linear(const std::string& name, Tensor x, const Weight& weight, DType y) {
  expect_cols(name, "input columns", x, weight.cols);
  Linear op{x, {}, {}, tracer_.weight(weight), make(x.rows, weight.rows, y)};
  if (const ActivationFormat format = input_format(tracer_.options().activations, weight);
      format.kind != ActivationFormat::Kind::none) {
    const Quantize& packed = quantised(name, x, format);
    op.x = packed.codes;
    op.x_scales = packed.scales;
    op.x_format = format;
    op.fp8_unit = tracer_.options().activations == Activations::a8;
  }
  emit(name, op);
  return op.y;
}

const Quantize& Step::quantised(const std::string& name, Tensor x, const ActivationFormat& format) {
  using Kind = ActivationFormat::Kind;
  for (const auto& [q, source] : packed_) {
    if (source.buffer == x.buffer && source.offset == x.offset && source.cols == x.cols && q.format == format) {
      return q;
    }
  }
  Quantize q{x, format, {}, {}};
  const bool fp4 = format.kind == Kind::nvfp4_static;
  q.codes = make(x.rows, fp4 ? x.cols / 2 : x.cols, DType::u8);
  if (fp4) q.scales = make(x.rows, x.cols / 16, DType::u8);
  if (format.kind == Kind::fp8_token) q.scales = make(x.rows, 1, DType::f32);
  if (format.kind == Kind::fp8_token_group128) q.scales = make(x.rows, (x.cols + 127) / 128, DType::f32);
  emit(name + ".input", q);
  return packed_.emplace_back(q, x).first;
}

Tensor Step::add(const std::string& name, Tensor a, Tensor b) {
  expect_cols(name, "columns", b, a.cols);
  Add op{a, b, make(a.rows, a.cols, DType::f32)};
  emit(name, op);
  return op.y;
}

Tensor Step::swiglu(const std::string& name, Tensor gate, Tensor up) {
  expect_cols(name, "columns", up, gate.cols);
  SwiGlu op{gate, up, make(gate.rows, gate.cols, tracer_.options().operand)};
  emit(name, op);
  return op.y;
}

Tensor Step::output_rows(Tensor x) {
  GatherRows op{x, make(Rows::outputs, x.cols, x.dtype)};
  emit("output_rows", op);
  return op.y;
}

Tensor Step::delta_net(const std::string& name, const DeltaInputs& in) {
  const DeltaShape& shape = in.shape;
  expect_cols(name, "qkv columns", in.qkv, shape.channels());
  expect_cols(name, "a columns", in.a, shape.value_heads);
  expect_cols(name, "b columns", in.b, shape.value_heads);
  const std::int32_t layer = state_layer(tracer_.spec().state.delta, delta_layers_++, shape, name);
  const ConstantId conv = tracer_.constant(name + ".conv1d", *in.conv, {shape.channels(), shape.conv_kernel});

  DeltaGates gates{in.a, in.b, tracer_.constant(name + ".neg_exp_a", *in.neg_exp_a, {shape.value_heads}),
                   tracer_.constant(name + ".dt_bias", *in.dt_bias, {shape.value_heads}),
                   make(Rows::tokens, shape.value_heads, DType::f32),
                   make(Rows::tokens, shape.value_heads, DType::f32)};
  emit(name + ".gates", gates);

  const Tensor mixed = make_operand(shape.channels());
  const Tensor out = make_operand(shape.value_channels());
  for (const Section section : {Section::decode, Section::verify, Section::prefill}) {
    if (program_.cls.has(section)) {
      emit(name + ".conv1d", DeltaConv{in.qkv, conv, shape, layer, section, mixed});
    }
  }
  for (const Section section : {Section::decode, Section::verify, Section::prefill}) {
    if (program_.cls.has(section)) {
      emit(name + ".delta_rule", DeltaRule{mixed, gates.g, gates.beta, shape, layer, section, out});
    }
  }
  return out;
}

Tensor Step::gated_rms_norm(const std::string& name, Tensor x, Tensor z,
                            const std::vector<float>& weight, float eps) {
  expect_cols(name, "gate columns", z, x.cols);
  const auto group = static_cast<std::int32_t>(weight.size());
  GatedRmsNorm op{x, z, tracer_.constant(name, weight, {group}), group, eps, make_operand(x.cols)};
  emit(name, op);
  return op.y;
}

Tensor Step::attention(const std::string& name, const AttentionInputs& in) {
  const AttentionShape& shape = in.shape;
  expect_cols(name, "k columns", in.k, std::int64_t{shape.kv_heads} * shape.head_dim);
  expect_cols(name, "v columns", in.v, std::int64_t{shape.kv_heads} * shape.head_dim);
  const std::int32_t layer = state_layer(tracer_.spec().state.attention, attention_layers_++, shape, name);
  const auto norm = [&](const char* leaf, const std::vector<float>* w) {
    return w == nullptr ? -1 : tracer_.constant(name + leaf, *w, {shape.head_dim});
  };
  const std::int64_t width = std::int64_t{shape.heads} * shape.head_dim;
  QkNormRope prepare{in.q, in.q_head_stride, in.k, in.v, norm(".q_norm", in.q_norm),
                     norm(".k_norm", in.k_norm), in.eps, tracer_.rope(in.rope), in.rope.rotary_dim,
                     shape, layer, make_operand(width)};
  emit(name + ".rope", prepare);
  const Tensor out = make_operand(width);
  for (const Section section : {Section::decode, Section::verify, Section::prefill}) {
    if (program_.cls.has(section)) {
      emit(name + ".attention", Attention{prepare.q_out, shape, in.scale, layer, section, out});
    }
  }
  return out;
}

Tensor Step::sigmoid_gate(const std::string& name, Tensor x, Tensor gate, const AttentionShape& shape,
                          std::int64_t gate_head_stride) {
  SigmoidGate op{x, gate, shape.heads, shape.head_dim, gate_head_stride, make_operand(x.cols)};
  emit(name, op);
  return op.y;
}

Program Step::finish(Tensor logits) {
  program_.logits = logits;
  if (program_.cls.kind == ProgramClass::Kind::score) {
    emit("logprob", TokenLogprob{logits});
  } else {
    emit("sample", Sample{logits});
  }
  tracer_.fuse(program_);
  plan(program_);
  return std::move(program_);
}

}  // namespace nibble
