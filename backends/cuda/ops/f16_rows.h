// f16_rows.h: between rows of f16 with an exponent and float32 rows of equal value, for ops that have no
// kernel of their own on f16 buffers. Rounding: docs/numerics.md, sm70.
#pragma once

#include "backends/cuda/launch.h"
#include "core/ops/ops.h"

namespace nibble::cuda {

struct F16RowsArgs {
  View half, wide;  // f16 with exponents, float32; equal rows and cols
};
// `section`: only its rows; null: all.
void widen_rows(const Launch& to, const F16RowsArgs& args, const Section* section);
// Also finds each row's exponent.
void narrow_rows(const Launch& to, const F16RowsArgs& args, const Section* section);
// GatherRows of f16: values and exponents as they are.
void gather_f16_rows(const Launch& to, const View& x, const View& y);

}  // namespace nibble::cuda
