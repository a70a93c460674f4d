// state_layout.h: what one sequence keeps between steps, layer by layer.
//
// Attention layers keep K and V in pages of 64 positions, taken from a pool that all sequences share.
// Delta-net layers keep the state S [value_heads, key_dim, value_dim] f32, the last raw inputs of the
// convolution, and a ring of `records` rows (key, u, decay) that are not folded into S yet: a step
// that ran ahead, or a refused draft, is taken back by not folding them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ops/ops.h"

namespace nibble {

constexpr std::int64_t kPageTokens = 64;   // also the grid on which prefill is cut
constexpr std::int64_t kSplitTokens = 1024;

// Of keys and values: the operand type, or e4m3 codes with a float32 scale for each row of a kv head (kv_codes.h).
enum class KvFormat : std::uint8_t { operand, fp8 };

struct StateLayout {
  std::vector<AttentionShape> attention;  // indexed by Attention::layer
  std::vector<DeltaShape> delta;          // indexed by DeltaRule::layer
  KvFormat kv = KvFormat::operand;
};

// Fixed at load.
struct StateSizes {
  std::int32_t slots = 1;    // sequences that live at once
  std::int64_t pages = 0;    // KV pages shared by all of them
  std::int32_t records = 1;  // rows that can be taken back: 1 + drafts
  std::int64_t vocab = 0;    // token counts for the repetition penalty
};
// Throws Error(invalid_argument) for sizes that no state can have.
void check_sizes(const StateSizes& sizes);

}  // namespace nibble
