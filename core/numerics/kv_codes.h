// kv_codes.h: rows of keys and values as the state keeps them in fp8 (StateLayout::kv). Of a row of K or V, one position and
// kv head, v as a buffer of the operand type holds it:
//   amax    largest |v| over head_dim, NaN ignored
//   scale   amax / 448, 1 where amax is 0                   float32
//   code    e4m3(v / scale)                                 as Quantize's fp8_token
// Attention (core/ops/ops.h, attention_order.h) multiplies the code of key j, exact in bf16, with its scale k_j behind the
// sum over head_dim, and the weight of value j with its scale v_j before: l sums weights without it.
#pragma once

#include "core/numerics/codecs.h"

namespace nibble::num {

NIBBLE_HD float kv_scale(float amax) { return amax == 0.0f ? 1.0f : div(amax, 448.0f); }
NIBBLE_HD std::uint8_t kv_code(float v, float scale) { return float_to_e4m3(div(v, scale)); }
NIBBLE_HD float kv_value(std::uint8_t code, float scale) { return mul(e4m3_to_float(code), scale); }

}  // namespace nibble::num
