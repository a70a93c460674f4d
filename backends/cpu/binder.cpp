#include "backends/cpu/binder.h"

#include "core/base/bytes.h"
#include "nibble/error.h"

namespace nibble::cpu {

BoundProgram bind(Loaded& loaded, const Program& program, const Widened& wide) {
  BoundProgram bound;
  bound.limits.cls = program.cls;
  bound.limits.name = program.cls.name();
  Binder binder(loaded, program, wide, bound);
  bound.ops.reserve(program.ops.size());
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    bound.ops.push_back(binder.bind(program.ops[i], !wide.rounded.empty() && wide.rounded[i]));
  }
  return bound;
}

// The rows that an op has written, where they are float32.
static void round_output(Loaded& l, const BoundOp& op, float* data, std::int32_t* exponents,
                         const Step& step) {
  const Tensor& t = op.output;
  const auto section = op.section == nullptr ? 0 : static_cast<std::size_t>(*op.section);
  const std::int64_t first = op.section == nullptr ? 0 : step.first_row[section];
  const std::int64_t rows = op.section == nullptr ? step.count(t.rows) : step.rows_of[section];
  const Out y = {data + first * t.stride, t.stride};
  if (exponents == nullptr) {
    round_bf16(l.isa, l.parallel, rows, t.cols, y);
  } else {
    round_f16(l.isa, l.parallel, rows, t.cols, y, exponents + first);
  }
}

// GatherRows moves what is rounded.
static bool rounds_itself(const OpArgs& args) {
  return std::holds_alternative<GatherRows>(args) || packs(args);
}

BoundOp Binder::bind(const Op& op, bool rounded) {
  op_ = &op;
  rounded_ = rounded;
  output_ = {};
  section_ = nullptr;
  BoundOp bound;
  bound.op = &op;
  bound.run = std::visit([this](const auto& args) { return call(args); }, op.args);
  if (output_.valid()) {
    bound.data = address("output", output_, output_.dtype, output_.cols);
    bound.output = output_;
    bound.section = section_;
  }
  if (rounded && !rounds_itself(op.args)) {
    expect(output_.valid(), "output", "one tensor that is rounded");
    std::int32_t* const e = exponents(output_);
    const Buffer& buffer = program_.buffers[static_cast<std::size_t>(output_.buffer)];
    expect(e == nullptr || output_.cols == buffer.cols, "output", "whole rows of its buffer");
    float* const data = f32("output", output_).data;
    bound.run = [&l = l_, run = std::move(bound.run), of = BoundOp{&op, {}, bound.data, output_, section_},
                 data, e](const Step& step) {
      run(step);
      round_output(l, of, data, e, step);
    };
  }
  return bound;
}

void Binder::fail(const std::string& what) const {
  throw Error(ErrorCode::internal, "[cpu] " + program_.cls.name() + ": " + op_->name + " (" +
                                       op_kind(op_->args) + "): " + what);
}

void Binder::expect(bool good, const char* field, const char* wanted) const {
  if (!good) fail(std::string(field) + ": expected " + wanted);
}

void Binder::expect_equal(const char* field, std::int64_t wanted, std::int64_t found) const {
  if (wanted != found) {
    fail(std::string(field) + ": expected " + std::to_string(wanted) + ", found " +
         std::to_string(found));
  }
}

std::byte* Binder::address(const char* field, const Tensor& t, DType dtype,
                           std::int64_t cols) const {
  const std::string name = field;
  if (!t.valid() || t.buffer >= static_cast<std::int64_t>(program_.buffers.size())) {
    fail(name + ": no buffer " + std::to_string(t.buffer));
  }
  if (t.dtype != dtype) {
    fail(name + ": expected " + dtype_name(dtype) + ", found " + dtype_name(t.dtype));
  }
  if (cols > 0 && t.cols != cols) expect_equal((name + " columns").c_str(), cols, t.cols);
  const Buffer& buffer = program_.buffers[static_cast<std::size_t>(t.buffer)];
  const std::int64_t size = dtype_bits(dtype) / 8, rows = program_.rows_of(t.rows);
  // all are small against 2^63 once they are known not to be negative and to fit the buffer
  const auto u = [](std::int64_t v) { return static_cast<std::uint64_t>(v); };
  const bool sane = t.cols > 0 && t.offset >= 0 && t.stride >= t.cols && rows > 0 &&
                    buffer.offset >= 0 && buffer.bytes >= 0 && buffer.offset % 4 == 0;
  const auto last = sane ? checked_mul(u(rows - 1), u(t.stride)) : std::nullopt;
  const auto end = last ? checked_add(*last, u(t.offset) + u(t.cols)) : std::nullopt;
  const auto bytes = end ? checked_mul(*end, u(size)) : std::nullopt;
  if (!bytes || *bytes > u(buffer.bytes) || u(buffer.bytes) > u(program_.scratch_bytes) ||
      buffer.offset > program_.scratch_bytes - buffer.bytes) {
    fail(name + ": " + std::to_string(rows) + " rows of " + std::to_string(t.cols) + " at " +
         std::to_string(t.offset) + " by " + std::to_string(t.stride) +
         " lie outside their buffer");
  }
  return l_.scratch_block.data() + buffer.offset + t.offset * size;
}

Binder::View Binder::f32(const char* field, const Tensor& t, std::int64_t cols) const {
  return {reinterpret_cast<float*>(address(field, t, DType::f32, cols)), t.stride, t.cols, t.rows};
}

std::int32_t* Binder::exponents(const Tensor& t) const {
  const auto id = static_cast<std::size_t>(t.buffer);
  if (id >= wide_.exponents.size() || wide_.exponents[id] < 0) return nullptr;
  return reinterpret_cast<std::int32_t*>(l_.scratch_block.data() + program_.buffers[id].offset +
                                         wide_.exponents[id]);
}

Binder::View Binder::rows_like(const char* field, const Tensor& t, const View& other,
                               std::int64_t cols) const {
  const View v = f32(field, t, cols);
  expect(v.rows == other.rows, field, "as many rows as the input");
  return v;
}

const PackedWeight& Binder::weight(WeightId id) const {
  if (id < 0 || id >= static_cast<std::int64_t>(l_.weights.size())) {
    fail("no weight " + std::to_string(id));
  }
  return l_.weights[static_cast<std::size_t>(id)];
}

const ConstantView& Binder::constant(const char* field, ConstantId id) const {
  if (id < 0 || id >= static_cast<std::int64_t>(l_.constants.size())) {
    fail(std::string(field) + ": no constant " + std::to_string(id));
  }
  return l_.constants[static_cast<std::size_t>(id)];
}

const float* Binder::constant(const char* field, ConstantId id, std::int64_t count) const {
  const ConstantView& view = constant(field, id);
  std::int64_t found = 1;
  for (const std::int64_t d : view.shape) found *= d;
  expect_equal(field, count, found);
  return view.data;
}

const DeltaShape& Binder::delta_layer(std::int32_t layer, const DeltaShape& shape) const {
  expect(layer >= 0 && layer < l_.delta.layers(), "layer", "one of the state's delta-net layers");
  const DeltaShape& state = l_.delta.shape(layer);
  expect(state.key_heads == shape.key_heads && state.value_heads == shape.value_heads &&
             state.key_dim == shape.key_dim && state.value_dim == shape.value_dim &&
             state.conv_kernel == shape.conv_kernel,
         "shape", "that of the state's layer");
  return state;
}

void Binder::attention_layer(std::int32_t layer, const AttentionShape& shape) const {
  expect(layer >= 0 && layer < l_.kv.layers(), "layer", "one of the state's attention layers");
  const AttentionShape& state = l_.kv.shape(layer);
  expect(state.heads == shape.heads && state.kv_heads == shape.kv_heads &&
             state.head_dim == shape.head_dim,
         "shape", "that of the state's layer");
}

}  // namespace nibble::cpu
