// state_view.h: where the state of sequences lies on the device.
#pragma once

#include <cstdint>

#include "core/ops/ops.h"

namespace nibble::cuda {

// One delta-net layer; element types: raw inputs in the operand type (float32 where
// that is f16), all else float32.
//   s        [slots, value_heads, key_dim, value_dim]
//   conv     [slots, conv_rows, channels]: ring of raw inputs, the row of a position at position
//   modulo
//            conv_rows = kernel - 1 + records
//   records  [slots, 2, records]: key [key_heads, key_dim], u [value_heads, value_dim],
//            decay [value_heads]; a step reads the half that RangeView::half names, fills the other
struct DeltaLayerView {
  DeltaShape shape;
  DType operand;
  std::int32_t slots, records, conv_rows;
  float* s;
  std::byte* conv;
  float *key, *u, *decay;
};

// One attention layer: [pages, kv_heads, 64, head_dim] each, in the operand type, float32 where
// that is f16. In fp8 (StateLayout::kv) codes of a byte each, and scales [pages, kv_heads, 64] for each of the two.
struct KvLayerView {
  AttentionShape shape;
  DType operand;
  std::int64_t pages;
  std::byte *k, *v;
  float *k_scales = nullptr, *v_scales = nullptr;  // null: not in fp8
};

}  // namespace nibble::cuda
