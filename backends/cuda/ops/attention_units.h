// attention_units.h: prefill rows of attention on matrix units, as profiles sm90 and sm120 have them
// (core/numerics/attention_order.h).
#pragma once

#include "backends/cuda/ops/sequence.h"

namespace nibble::cuda {

// Of prefill rows; shapes that num::attention_on_units() names, q and y bf16 at multiples of 16 and 4 bytes.
void attention_units(const Launch& to, const AttentionArgs& args);

// The same on wgmma (attention_wgmma.cu). Why it does not serve; null: it does.
const char* refuse_attention_wgmma(const Launch& to, const AttentionArgs& args);
void attention_wgmma(const Launch& to, const AttentionArgs& args);

}  // namespace nibble::cuda
