// linear.h: y[t, n] = sum_k x[t, k] * w[n, k] for any number of rows; contract: core/ops/ops.h
// Linear.
//   x [rows, cols] f32, or Quantize's codes and scales    y [rows, weight rows] f32
//   map   a grid of (rows block, panels) over threads; which thread gets what changes no bit
//   quantised x is decoded to operands, kOperandRows rows at a time, in the caller's workspace
#pragma once

#include <cstdint>

#include "backends/cpu/isa.h"
#include "backends/cpu/packed_weight.h"
#include "backends/cpu/parallel.h"

namespace nibble::cpu {

struct LinearArgs {
  const PackedWeight* weight = nullptr;
  std::int64_t rows = 0;

  // Kind::none: x. Else codes (nvfp4: cols / 2 bytes a row, fp8: cols) and, but for
  // fp8_tensor_static, scales (nvfp4: u8 cols / 16 a row; fp8_token: f32, 1 a row, stride 1;
  // group128: f32 ceil(cols / 128) a row).
  ActivationFormat format;
  const float* x = nullptr;
  std::int64_t x_stride = 0;  // of x or codes, in elements
  const std::uint8_t* codes = nullptr;
  const void* scales = nullptr;
  std::int64_t scale_stride = 0;  // in elements

  float* y = nullptr;
  std::int64_t y_stride = 0;

  std::byte* workspace = nullptr;  // linear_workspace_bytes(), aligned to 64; unused for Kind::none

  bool fp8_unit = false;  // linear_fused in profile sm90: code by code

  const std::int32_t* x_exponents = nullptr;  // [rows] of x: linear_fused in profile sm70
};

constexpr std::int64_t kOperandRows = 576;

// Enough for any call with up to `max_rows` rows and `cols` columns; 0 is enough for Kind::none.
std::int64_t linear_workspace_bytes(std::int64_t max_rows, std::int64_t cols);

void linear(Isa isa, Parallel& parallel, const LinearArgs& args);

}  // namespace nibble::cpu
