#include "core/parity/weight_rows.h"

#include "core/checkpoint/widen.h"
#include "core/numerics/codecs.h"

namespace nibble {
namespace {

std::uint8_t byte_at(Bytes bytes, std::int64_t at) {
  return std::to_integer<std::uint8_t>(bytes[static_cast<std::size_t>(at)]);
}

double code_value(const Weight& w, std::int64_t row, std::int64_t k) {
  const std::int64_t at = row * w.cols + k;
  const auto offset = static_cast<std::size_t>(at);
  switch (w.format) {
    case WeightFormat::f32:
      return load_le<float>(w.codes, 4 * offset);
    case WeightFormat::f16:
      return widen_f16(load_le<std::uint16_t>(w.codes, 2 * offset));
    case WeightFormat::bf16:
      return widen_bf16(load_le<std::uint16_t>(w.codes, 2 * offset));
    case WeightFormat::fp8_e4m3:
      return num::e4m3_to_float(byte_at(w.codes, at));
    case WeightFormat::nvfp4: {
      const unsigned two = byte_at(w.codes, at / 2);
      const auto code = static_cast<std::uint8_t>(k % 2 == 0 ? two & 15u : two >> 4);
      return static_cast<double>(num::e2m1_to_float(code)) *
             num::e4m3_to_float(byte_at(w.block_scales, at / 16));
    }
  }
  return 0;
}

}  // namespace

void weight_row(const Weight& w, std::int64_t row, double* out) {
  const std::int64_t across = (w.cols + 127) / 128;
  for (std::int64_t k = 0; k < w.cols; ++k) {
    double scale = 1;
    switch (w.scale_layout) {
      case ScaleLayout::none:
        break;
      case ScaleLayout::tensor:
        scale = w.scales[0];
        break;
      case ScaleLayout::row:
        scale = w.scales[static_cast<std::size_t>(row)];
        break;
      case ScaleLayout::block128:
        scale = w.scales[static_cast<std::size_t>(row / 128 * across + k / 128)];
        break;
    }
    out[k] = code_value(w, row, k) * scale;
  }
}

}  // namespace nibble
