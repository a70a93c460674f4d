// attention_units.h: attention on matrix units, as profiles sm90 and sm120 have it (core/numerics/attention_order.h). Of
// shapes that num::attention_on_units() names, q and y bf16 at multiples of 16 and 4 bytes.
#pragma once

#include "backends/cuda/ops/sequence.h"
#include "core/numerics/attention_order.h"

namespace nibble::cuda {

void attention_units(const Launch& to, const AttentionArgs& args);   // prefill rows
void attention_decode(const Launch& to, const AttentionArgs& args);  // decode and verify rows
void check_on_units(const AttentionArgs& args);                      // throws for others

// Prefill rows on wgmma (attention_wgmma.cu). Why it does not serve; null: it does.
const char* refuse_attention_wgmma(const Launch& to, const AttentionArgs& args);
void attention_wgmma(const Launch& to, const AttentionArgs& args);

// What a split of a kv head leaves for so many queries, in multiples of 16 bytes.
NIBBLE_HD constexpr std::int64_t attention_part_floats(std::int64_t queries, std::int64_t head_dim) {
  return (queries * (head_dim + 2) + 3) / 4 * 4;
}

}  // namespace nibble::cuda
