#pragma once

#include "backends/cpu/kernels/linear.h"
#include "backends/cpu/ops/linear.h"

namespace nibble::cpu {

// What a slab's rows [first, first + rows) share, whichever unit multiplies them.
inline LinearBlock slab_of(const LinearArgs& a, std::int64_t first, std::int64_t rows) {
  LinearBlock b{a.weight, nullptr, 0, rows, nullptr, 0, nullptr, 1.0f, a.y + first * a.y_stride,
                a.y_stride};
  const auto* scales = static_cast<const float*>(a.scales);
  if (a.format.kind == ActivationFormat::Kind::fp8_token_group128) {
    b.group_scale = scales + first * a.scale_stride;
    b.group_stride = a.scale_stride;
  }
  if (a.format.kind == ActivationFormat::Kind::fp8_token) b.row_scale = scales + first;
  if (a.format.kind == ActivationFormat::Kind::nvfp4_static || a.format.kind == ActivationFormat::Kind::fp8_tensor_static) {
    b.tensor_scale = a.format.scale;
  }
  return b;
}

}  // namespace nibble::cpu
