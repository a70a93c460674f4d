// binder_views.h: what the fields of an op are on the card: tensors as addresses inside their buffers, weights, constants
// and layers of the state, each looked at before it is used. Complaints name program, op and field.
#pragma once

#include <string>

#include "backends/cuda/loaded.h"
#include "backends/cuda/ops/linear.h"
#include "backends/cuda/wide_rows.h"

namespace nibble::cuda {

class BinderViews {
 protected:
  BinderViews(Loaded& loaded, const Program& program) : l_(loaded), program_(program) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::internal, "[cuda] " + program_.cls.name() + ": " + op_->name + " (" +
                                         op_kind(op_->args) + "): " + what);
  }
  void expect(bool good, const char* field, const char* wanted) const {
    if (!good) fail(std::string(field) + ": expected " + wanted);
  }
  void expect_equal(const char* field, std::int64_t wanted, std::int64_t found) const {
    if (wanted != found) {
      fail(std::string(field) + ": expected " + std::to_string(wanted) + ", found " +
           std::to_string(found));
    }
  }

  // Address of a tensor of this type with `cols` columns (0: any), inside its buffer and the
  // scratch.
  View typed_view(const char* field, const Tensor& t, DType dtype, std::int64_t cols = 0) const {
    const std::string name = field;
    if (!t.valid() || t.buffer >= static_cast<std::int64_t>(program_.buffers.size())) {
      fail(name + ": no buffer " + std::to_string(t.buffer));
    }
    if (t.dtype != dtype) {
      fail(name + ": expected " + dtype_name(dtype) + ", found " + dtype_name(t.dtype));
    }
    if (cols > 0) expect_equal((name + " columns").c_str(), cols, t.cols);
    const Buffer& buffer = program_.buffers[static_cast<std::size_t>(t.buffer)];
    const std::int64_t size = dtype_bits(dtype) / 8, rows = program_.rows_of(t.rows);
    constexpr std::int64_t kMost = std::int64_t{1} << 40;  // products of two stay below 2^63
    const bool sane = t.cols > 0 && t.cols < (std::int64_t{1} << 31) && t.offset >= 0 &&
                      t.offset < kMost && t.stride >= t.cols && t.stride < kMost && rows > 0 &&
                      rows < (1 << 22);
    if (!sane || ((rows - 1) * t.stride + t.offset + t.cols) * size > buffer.bytes ||
        buffer.offset < 0 || buffer.offset % 16 != 0 ||
        buffer.offset + buffer.bytes > program_.scratch_bytes) {
      fail(name + ": " + std::to_string(rows) + " rows of " + std::to_string(t.cols) + " at " +
           std::to_string(t.offset) + " by " + std::to_string(t.stride) +
           " lie outside their buffer");
    }
    std::int32_t* exponents = nullptr;
    if (dtype == DType::f16) {
      exponents = l_.workspace.exponents + t.buffer * l_.workspace.exponent_rows;
    }
    return {l_.scratch_block.data() + buffer.offset + t.offset * size,
            dtype,
            t.rows,
            t.stride,
            static_cast<std::int32_t>(t.cols),
            exponents};
  }
  View f32(const char* field, const Tensor& t, std::int64_t cols = 0) const {
    return typed_view(field, t, DType::f32, cols);
  }
  // An operand that the op reads, or writes: where buffers are f16, float32 copies of its rows.
  View operand(const char* field, const Tensor& t, std::int64_t cols = 0) {
    return wide_.read(typed_view(field, t, l_.operand, cols));
  }
  View result(const char* field, const Tensor& t, std::int64_t cols = 0) {
    return wide_.write(typed_view(field, t, l_.operand, cols));
  }
  // With as many rows as `other`.
  View like(const char* field, const Tensor& t, const Tensor& other, std::int64_t cols) {
    expect(t.rows == other.rows, field, "as many rows as the input");
    return operand(field, t, cols);
  }
  View result_like(const char* field, const Tensor& t, const Tensor& other, std::int64_t cols) {
    expect(t.rows == other.rows, field, "as many rows as the input");
    return result(field, t, cols);
  }
  View scales(const char* field, const Tensor& t, const ActivationFormat& format,
              std::int64_t k) const {
    using Kind = ActivationFormat::Kind;
    switch (format.kind) {
      case Kind::nvfp4_static:
        return typed_view(field, t, DType::u8, k / 16);
      case Kind::fp8_token:
        return f32(field, t, 1);
      case Kind::fp8_token_group128:
        return f32(field, t, (k + 127) / 128);
      default:
        return {};
    }
  }

  LinearArgs linear_args(const Tensor& x, const Tensor& x_scales, const ActivationFormat& format, WeightId id,
                         const Tensor& y) {
    return linear_args(x, x_scales, format, weight(id), y, weight(id).rows);
  }
  // y has so many columns.
  LinearArgs linear_args(const Tensor& x, const Tensor& x_scales, const ActivationFormat& format, const WeightImage& w,
                         const Tensor& y, std::int64_t cols) {
    using Kind = ActivationFormat::Kind;
    LinearArgs args;
    args.format = format;
    args.weight = w;
    args.path = l_.path;
    if (format.kind == Kind::none) {
      args.x = typed_view("x", x, l_.operand, w.cols);  // f16 as it is
    } else {
      args.x = typed_view("x", x, DType::u8, format.kind == Kind::nvfp4_static ? w.cols / 2 : w.cols);
      args.x_scales = scales("x_scales", x_scales, format, w.cols);
    }
    expect(y.dtype == DType::f32 || y.dtype == l_.operand, "y", "float32 or the operand type");
    args.y = wide_.write(typed_view("y", y, y.dtype, cols));
    return args;
  }
  static std::string linear_name(const char* kind, const WeightImage& w, const ActivationFormat& x) {
    std::string name = std::string(kind) + weight_format_name(w.format);
    if (x.kind != ActivationFormat::Kind::none) name += std::string(" x ") + activation_format_name(x.kind);
    return name;
  }
  // [T, k] or [T * k, 1] of an ExpertRoute, rows without gaps.
  std::int32_t* indices(const char* field, const Tensor& t, Rows rows, std::int64_t cols) const {
    expect(t.rows == rows && t.stride == cols, field, "rows of their kind without gaps");
    return reinterpret_cast<std::int32_t*>(typed_view(field, t, DType::i32, cols).data);
  }

  const WeightImage& weight(WeightId id) const {
    const WeightImage& w = image(id);
    if (w.gate_up || w.codes == nullptr) fail("weight " + std::to_string(id) + " lies in an image of gate and up");
    return w;
  }
  // Of both, at gate's place.
  const WeightImage& gate_up(WeightId gate, WeightId up) const {
    const WeightImage& w = image(gate);
    expect(w.gate_up && image(up).codes == nullptr, "gate", "an image of gate and up");
    return w;
  }
  const ConstantView& constant(const char* field, ConstantId id) const {
    if (id < 0 || id >= static_cast<std::int64_t>(l_.constants.size())) {
      fail(std::string(field) + ": no constant " + std::to_string(id));
    }
    return l_.constants[static_cast<std::size_t>(id)];
  }
  const float* constant(const char* field, ConstantId id, std::int64_t count) const {
    const ConstantView& view = constant(field, id);
    std::int64_t found = 1;
    for (const std::int64_t d : view.shape) found *= d;
    expect_equal(field, count, found);
    return view.data;
  }
  const DeltaLayerView& delta_layer(std::int32_t layer, const DeltaShape& s) const {
    expect(layer >= 0 && layer < static_cast<std::int32_t>(l_.delta.size()), "layer",
           "one of the state's delta-net layers");
    const DeltaLayerView& state = l_.delta[static_cast<std::size_t>(layer)];
    const DeltaShape& d = state.shape;
    expect(d.key_heads == s.key_heads && d.value_heads == s.value_heads && d.key_dim == s.key_dim &&
               d.value_dim == s.value_dim && d.conv_kernel == s.conv_kernel,
           "shape", "that of the state's layer");
    return state;
  }
  const KvLayerView& attention_layer(std::int32_t layer, const AttentionShape& s) const {
    expect(layer >= 0 && layer < static_cast<std::int32_t>(l_.kv.size()), "layer",
           "one of the state's attention layers");
    const KvLayerView& state = l_.kv[static_cast<std::size_t>(layer)];
    expect(state.shape.heads == s.heads && state.shape.kv_heads == s.kv_heads &&
               state.shape.head_dim == s.head_dim,
           "shape", "that of the state's layer");
    return state;
  }

  const WeightImage& image(WeightId id) const {
    if (id < 0 || id >= static_cast<std::int64_t>(l_.weights.size())) fail("no weight " + std::to_string(id));
    return l_.weights[static_cast<std::size_t>(id)];
  }

  Loaded& l_;
  const Program& program_;
  WideRows wide_;
  const Op* op_ = nullptr;
};

}  // namespace nibble::cuda
