#include "core/checkpoint/weight.h"

namespace nibble {

const char* weight_format_name(WeightFormat f) {
  switch (f) {
    case WeightFormat::f32:
      return "f32";
    case WeightFormat::f16:
      return "f16";
    case WeightFormat::bf16:
      return "bf16";
    case WeightFormat::fp8_e4m3:
      return "fp8_e4m3";
    case WeightFormat::nvfp4:
      return "nvfp4";
  }
  return "?";
}

const char* scale_layout_name(ScaleLayout s) {
  switch (s) {
    case ScaleLayout::none:
      return "none";
    case ScaleLayout::tensor:
      return "tensor";
    case ScaleLayout::row:
      return "row";
    case ScaleLayout::block128:
      return "block128";
  }
  return "?";
}

const char* activation_format_name(ActivationFormat::Kind k) {
  switch (k) {
    case ActivationFormat::Kind::none:
      return "none";
    case ActivationFormat::Kind::nvfp4_static:
      return "nvfp4_static";
    case ActivationFormat::Kind::fp8_tensor_static:
      return "fp8_tensor_static";
    case ActivationFormat::Kind::fp8_token:
      return "fp8_token";
    case ActivationFormat::Kind::fp8_token_group128:
      return "fp8_token_group128";
  }
  return "?";
}

std::uint64_t Weight::bytes() const {
  const auto elements = static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(cols);
  std::uint64_t size = 4 * scales.size();
  switch (format) {
    case WeightFormat::f32:
      return size + elements * 4;
    case WeightFormat::f16:
    case WeightFormat::bf16:
      return size + elements * 2;
    case WeightFormat::fp8_e4m3:
      return size + elements;
    case WeightFormat::nvfp4:
      return size + elements / 2 + elements / 16;
  }
  return size;
}

}  // namespace nibble
