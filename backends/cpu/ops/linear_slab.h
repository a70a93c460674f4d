// linear_slab.h: what Linear of every profile does with its arguments before the inner loops differ.
#pragma once

#include "backends/cpu/kernels/linear.h"
#include "backends/cpu/ops/linear.h"

namespace nibble::cpu {

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

inline const LinearKernels& linear_kernels_of(Isa isa) { NIBBLE_PICK_ISA(isa, linear_kernels()); }

// Rows [first, first + rows), without x, which each profile has in a form of its own.
inline LinearBlock slab_of(const LinearArgs& a, std::int64_t first, std::int64_t rows) {
  using Kind = ActivationFormat::Kind;
  LinearBlock b{a.weight, nullptr, 0, rows, nullptr, 0, nullptr, 1.0f, a.y + first * a.y_stride, a.y_stride};
  const auto* scales = static_cast<const float*>(a.scales);
  if (a.format.kind == Kind::fp8_token_group128) {
    b.group_scale = scales + first * a.scale_stride;
    b.group_stride = a.scale_stride;
  }
  if (a.format.kind == Kind::fp8_token) b.row_scale = scales + first;
  if (a.format.kind == Kind::nvfp4_static || a.format.kind == Kind::fp8_tensor_static) b.tensor_scale = a.format.scale;
  return b;
}

// Rows [first, first + rows) of a block; of x only where it is one of float32.
inline LinearBlock rows_of(LinearBlock b, std::int64_t first, std::int64_t rows) {
  if (b.x != nullptr) b.x += first * b.x_stride;
  if (b.group_scale != nullptr) b.group_scale += first * b.group_stride;
  if (b.row_scale != nullptr) b.row_scale += first;
  b.y += first * b.y_stride;
  b.rows = rows;
  return b;
}

// A row of x in float32: itself, or what Quantize made of it, exactly, in `buffer`.
inline const float* float_row(const LinearKernels& kernels, const LinearArgs& a, std::int64_t row, float* buffer) {
  const std::int64_t cols = a.weight->cols;
  if (a.format.kind == ActivationFormat::Kind::none) return a.x + row * a.x_stride;
  const std::uint8_t* const codes = a.codes + row * a.x_stride;
  if (a.format.kind == ActivationFormat::Kind::nvfp4_static) {
    const auto* const scales = static_cast<const std::uint8_t*>(a.scales) + row * a.scale_stride;
    kernels.decode_nvfp4(codes, scales, cols, buffer);
  } else {
    kernels.decode_fp8(codes, cols, buffer);
  }
  return buffer;
}

}  // namespace nibble::cpu
