// Matrices of a checkpoint. The format is seen from the tensors: weight_packed with
// weight_global_scale is compressed-tensors' NVFP4 (the global scale divides), U8 weight with
// weight_scale_2 is ModelOpt's (it multiplies); F8_E4M3 has weight_scale or weight_scale_inv.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <mutex>

#include "core/checkpoint/finite.h"
#include "core/checkpoint/weights.h"
#include "core/checkpoint/weights_shared.h"
#include "core/checkpoint/widen.h"
#include "nibble/error.h"

namespace nibble {
namespace {

constexpr float kMostScale = 0x1p120f;

std::int64_t blocks(std::int64_t n) {
  return (n + 127) / 128;
}

std::string float_text(float v) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", static_cast<double>(v));
  return text;
}

bool is_scalar(const TensorInfo& t) {
  return t.shape.empty() || t.shape == std::vector<std::int64_t>{1};
}

}  // namespace

Weight Weights::matrix(std::int64_t rows, std::int64_t cols) const {
  return read_matrix(rows, cols, false);
}

Weight Weights::shared_matrix(std::int64_t rows, std::int64_t cols) const {
  return read_matrix(rows, cols, true);
}

Weight Weights::stacked_matrix(std::int64_t count, std::int64_t rows, std::int64_t cols) const {
  const TensorInfo* weight = find("");
  if (weight == nullptr) weight = find(".weight");
  if (weight == nullptr) missing({"", ".weight"});
  const std::vector<std::int64_t> shape{count, rows, cols};
  expect(*weight, {DType::f32, DType::f16, DType::bf16}, shape);
  Weight out;
  out.name = path_;
  out.rows = count * rows;
  out.cols = cols;
  out.codes = weight->bytes;
  out.codes_origin = origin(*weight);
  out.owner = shared_->source->owner(*weight);
  if (shared_->source->decoded_at_load(*weight, out)) wrong(*weight, "a stack that lies in the file as such");
  out.format = weight->dtype == DType::f32   ? WeightFormat::f32
               : weight->dtype == DType::f16 ? WeightFormat::f16
                                             : WeightFormat::bf16;
  bind(weight->name, false);
  return out;
}

Weight Weights::read_matrix(std::int64_t rows, std::int64_t cols, bool shared) const {
  if (rows <= 0 || cols <= 0) {
    throw Error(
        ErrorCode::invalid_argument,
        "[weights] " + path_ + ": expected a positive shape, got " + shape_text({rows, cols}));
  }
  if (auto made = shared_->source->make_matrix(path_, rows, cols)) {
    bind(path_ + ".weight", shared);
    return std::move(*made);
  }
  const TensorInfo* packed = find(".weight_packed");
  const TensorInfo* weight = find(".weight");
  if (packed != nullptr && weight != nullptr) {
    wrong(*weight, "no such tensor beside " + show_name(packed->name));
  }
  if (packed != nullptr) weight = packed;
  if (weight == nullptr) missing({".weight", ".weight_packed"});

  Weight out;
  out.name = path_;
  out.rows = rows;
  out.cols = cols;
  out.codes = weight->bytes;
  out.codes_origin = origin(*weight);
  out.owner = shared_->source->owner(*weight);
  if (shared_->source->decoded_at_load(*weight, out)) {
    read_decoded(*weight, out, shared);
  } else if (weight == packed || weight->dtype == DType::u8) {
    read_nvfp4(*weight, out, shared);
  } else if (weight->dtype == DType::f8_e4m3) {
    read_fp8(*weight, out, shared);
  } else {
    read_plain(*weight, out);
  }
  bind(weight->name, shared);
  read_activation(out, shared);
  return out;
}

void Weights::read_decoded(const TensorInfo& weight, Weight& out, bool shared) const {
  const std::vector<std::int64_t> shape{out.rows, out.cols};
  if (weight.shape != shape) wrong(weight, "shape " + shape_text(shape));
  if (out.format != WeightFormat::nvfp4) return;
  const TensorInfo* scale = find(".weight_scale_2");
  out.scale_layout = ScaleLayout::tensor;
  out.scales = {scale == nullptr ? 1.0f : scalar(*scale, false, shared)};
}

void Weights::read_plain(const TensorInfo& weight, Weight& out) const {
  switch (weight.dtype) {
    case DType::f32:
      out.format = WeightFormat::f32;
      break;
    case DType::f16:
      out.format = WeightFormat::f16;
      break;
    case DType::bf16:
      out.format = WeightFormat::bf16;
      break;
    default:
      wrong(weight, "F32, F16, BF16, F8_E4M3 " + shape_text({out.rows, out.cols}) +
                        " or U8 (two NVFP4 codes a byte) " + shape_text({out.rows, out.cols / 2}));
  }
  expect(weight, {weight.dtype}, {out.rows, out.cols});
}

void Weights::read_fp8(const TensorInfo& weight, Weight& out, bool shared) const {
  out.format = WeightFormat::fp8_e4m3;
  expect(weight, {DType::f8_e4m3}, {out.rows, out.cols});
  const TensorInfo* plain = find(".weight_scale");
  const TensorInfo* inverse = find(".weight_scale_inv");
  if (plain != nullptr && inverse != nullptr) {
    wrong(*inverse, "no such tensor beside " + show_name(plain->name));
  }
  const TensorInfo* scale = plain != nullptr ? plain : inverse;
  if (scale == nullptr) lacks(weight, {".weight_scale", ".weight_scale_inv"});

  const std::vector<std::int64_t> grid{blocks(out.rows), blocks(out.cols)};
  const std::vector<std::int64_t> column{out.rows, 1}, line{out.rows};
  if (scale == plain && is_scalar(*scale)) {
    out.scale_layout = ScaleLayout::tensor;
  } else if (scale == plain && (scale->shape == column || scale->shape == line)) {
    out.scale_layout = ScaleLayout::row;
  } else if (scale->shape == grid) {
    out.scale_layout = ScaleLayout::block128;
  } else if (scale == plain) {
    wrong(*scale, "[] (tensor), " + shape_text(column) + " (row) or " + shape_text(grid) +
                      " (blocks of 128 x 128)");
  } else {
    wrong(*scale, shape_text(grid) + " (blocks of 128 x 128)");
  }
  out.scales = scales(*scale, shared);
  // Codes of 448 times more leave float32's range in the sums of a layer, if not before.
  const auto bad = std::find_if(out.scales.begin(), out.scales.end(), [](float v) { return v < 0 || v >= kMostScale; });
  if (bad != out.scales.end()) {
    wrong(*scale, "scales of at least 0 and below 2^120",
          float_text(*bad) + " at " + std::to_string(bad - out.scales.begin()));
  }
}

void Weights::read_nvfp4(const TensorInfo& codes, Weight& out, bool shared) const {
  out.format = WeightFormat::nvfp4;
  if (out.cols % 16 != 0) {
    wrong(codes, "another format for " + std::to_string(out.cols) +
                     " columns, which are no multiple of NVFP4's block of 16");
  }
  expect(codes, {DType::u8}, {out.rows, out.cols / 2});
  const TensorInfo* block = find(".weight_scale");
  if (block == nullptr) lacks(codes, {".weight_scale"});
  expect(*block, {DType::f8_e4m3}, {out.rows, out.cols / 16});
  out.block_scales = block->bytes;
  out.scales_origin = origin(*block);
  if (const auto owner = shared_->source->owner(*block); owner != out.owner) {
    out.owner =
        std::make_shared<std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(
            out.owner, owner);  // codes and scales may lie in different shards
  }
  bind(block->name, shared);

  const bool divides = codes.name.ends_with(".weight_packed");
  const char* suffix = divides ? ".weight_global_scale" : ".weight_scale_2";
  const TensorInfo* global = find(suffix);
  if (global == nullptr) lacks(codes, {suffix});
  out.scale_layout = ScaleLayout::tensor;
  out.scales = {scalar(*global, divides, shared)};
}

void Weights::read_activation(Weight& out, bool shared) const {
  using Kind = ActivationFormat::Kind;
  const TensorInfo* divisor = find(".input_global_scale");
  const TensorInfo* multiplier = find(".input_scale");
  if (divisor != nullptr && multiplier != nullptr) {
    wrong(*multiplier, "no such tensor beside " + show_name(divisor->name));
  }
  const TensorInfo* scale = divisor != nullptr ? divisor : multiplier;
  const float value = scale == nullptr ? 0.0f : scalar(*scale, divisor != nullptr, shared);

  const Kind kind = shared_->config.activation(aliases());
  const bool fits = kind == Kind::nvfp4_static ? out.format == WeightFormat::nvfp4
                                               : out.format == WeightFormat::fp8_e4m3;
  if (kind == Kind::none || !fits) return;  // tensors decide where the configuration disagrees
  if (kind == Kind::fp8_token || kind == Kind::fp8_token_group128) {
    out.activation = {kind, 0.0f};
  } else if (scale != nullptr) {
    out.activation = {kind, value};
  } else {
    const std::lock_guard lock(shared_->mutex);
    shared_->unscaled.push_back(path_);
  }
}

std::vector<float> Weights::scales(const TensorInfo& t, bool shared) const {
  if (!can_widen(t.dtype)) wrong(t, "F32, F16 or BF16 " + shape_text(t.shape));
  std::vector<float> values = widen(t);
  if (const std::string bad = first_not_finite(values, t.shape); !bad.empty()) {
    wrong(t, "finite scales", bad);
  }
  bind(t.name, shared);
  return values;
}

float Weights::scalar(const TensorInfo& t, bool divisor, bool shared) const {
  if (!is_scalar(t)) wrong(t, "a single scale");
  const float stored = scales(t, shared).at(0);
  const float value = divisor ? static_cast<float>(1.0 / static_cast<double>(stored)) : stored;
  if (value < 0 || (divisor && stored == 0)) {
    wrong(t, divisor ? "a finite positive divisor" : "a scale of at least 0", float_text(stored));
  }
  if (value >= kMostScale) wrong(t, divisor ? "a divisor above 2^-120" : "a scale below 2^120", float_text(stored));
  return value;
}

// Files spell a module as in their tensors, or by the name that it had in another class.
std::vector<std::string> Weights::aliases() const {
  std::vector<std::string> names{path_};
  const auto add = [&](std::string name) {
    for (const std::string& held : names) {
      if (held == name) return;
    }
    names.push_back(std::move(name));
  };
  add(logical_);
  if (logical_.starts_with("model.")) {
    add("model.language_model" + logical_.substr(5));
    add("language_model.model" + logical_.substr(5));
  } else {
    add("language_model." + logical_);
  }
  return names;
}

}  // namespace nibble
