// dense_config.h: the numbers of a decoder whose layers are all attention and SwiGLU, from
// config.json.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/json.h"
#include "core/layers/layers.h"

namespace nibble {

struct DenseConfig {
  std::int64_t vocab = 0, hidden = 0, intermediate = 0, layers = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0, max_positions = 0;
  RopeConfig rope;
  float rms_eps = 0;
  bool tied = false;
  std::vector<std::int32_t> eos_ids;  // may be empty

  AttentionShape attention() const {
    return {static_cast<std::int32_t>(heads), static_cast<std::int32_t>(kv_heads),
            static_cast<std::int32_t>(head_dim)};
  }
};

// What a file means that leaves head_dim and num_key_value_heads out.
enum class AbsentHeads {
  refused,
  derived,  // hidden_size / num_attention_heads, and as many KV heads as heads
};

// `config` is the whole file. Throws Error(bad_file) with the key, Error(unsupported) for a variant
// that nothing here runs: biases, sliding windows, other activations, other kinds of rotary
// embedding.
DenseConfig read_dense_config(const JsonView& config, AbsentHeads absent);

}  // namespace nibble
