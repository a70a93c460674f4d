// quantize.h: activations to codes and scales; contract: core/ops/ops.h Quantize.
//   x [rows, cols] f32    codes u8 [rows, cols / 2 or cols]
//   scales nvfp4: u8 [rows, cols / 16]; fp8_token: f32 [rows, 1]; group128: f32 [rows, ceil(cols /
//   128)]
#pragma once

#include <cstdint>

#include "backends/cpu/isa.h"
#include "backends/cpu/parallel.h"
#include "core/checkpoint/weight.h"

namespace nibble::cpu {

struct QuantizeArgs {
  std::int64_t rows = 0, cols = 0;  // nvfp4: cols % 16 == 0
  ActivationFormat format;          // not Kind::none
  const float* x = nullptr;
  std::int64_t x_stride = 0;
  std::uint8_t* codes = nullptr;
  std::int64_t code_stride = 0;
  void* scales = nullptr;         // unused by fp8_tensor_static
  std::int64_t scale_stride = 0;  // in elements
};

void quantize(Isa isa, Parallel& parallel, const QuantizeArgs& args);

// For ops that quantise what they have just made. Throws Error(internal) for what quantize() refuses.
void check_quantize(const QuantizeArgs& args);
// Columns [first, first + count) of one row, `x` pointing at the first; both ends are ends of the format's
// groups (fp8_token: of the row). Of args' x nothing is read.
void quantize_columns(Isa isa, const QuantizeArgs& args, std::int64_t row, std::int64_t first,
                      std::int64_t count, const float* x);

}  // namespace nibble::cpu
