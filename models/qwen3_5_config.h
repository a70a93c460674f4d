// qwen3_5_config.h: the numbers of a Qwen3.5 text model, read from config.json and checked.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/json.h"

namespace nibble {

struct Qwen3_5Config {
  std::int64_t vocab = 0, hidden = 0, intermediate = 0, layers = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0, rotary_dim = 0;
  std::int64_t linear_key_heads = 0, linear_value_heads = 0;
  std::int64_t linear_key_dim = 0, linear_value_dim = 0, conv_kernel = 0;
  std::int64_t max_positions = 0, mtp_layers = 0;
  double rope_theta = 0;
  float rms_eps = 0;
  bool tied = false;
  std::vector<bool> full_attention;   // a flag for each layer; the others are delta net
  std::vector<std::int32_t> eos_ids;  // may be empty
};

// `config` is the whole file: with text_config inside (model_type qwen3_5) or flat (qwen3_5_text).
// Throws Error(bad_file) with the key, Error(unsupported) for a variant that nothing here runs.
Qwen3_5Config read_qwen3_5_config(const JsonView& config);

}  // namespace nibble
