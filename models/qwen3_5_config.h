// qwen3_5_config.h: the numbers of a Qwen3.5 text model and its relatives (qwen3_5_moe.cpp,
// qwen3_next.cpp), read from config.json and checked.
#pragma once

#include <cstdint>
#include <string_view>
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
  std::vector<bool> sparse;           // layers whose MLP is a mixture of experts; empty: none
  std::int64_t experts = 0, experts_per_token = 0;
  std::int64_t expert_intermediate = 0, shared_intermediate = 0;
  bool normalised_experts = true;
  bool fused_delta_projections = false;  // in_proj_qkvz and in_proj_ba
  std::vector<std::int32_t> eos_ids;  // may be empty
};

// `config` is the whole file: with text_config inside (model_type qwen3_5) or flat (qwen3_5_text).
// Throws Error(bad_file) with the key, Error(unsupported) for a variant that nothing here runs.
Qwen3_5Config read_qwen3_5_config(const JsonView& config);

// What relatives have in common with it. `text` describes the text model, `config` is the whole file.
// Reads everything but intermediate_size, and of experts their numbers only where a relative has them.
Qwen3_5Config read_hybrid_config(const JsonView& config, const JsonView& text);
// num_experts, num_experts_per_tok, moe_intermediate_size, shared_expert_intermediate_size.
void read_experts(const JsonView& text, Qwen3_5Config& c);
// What the family calls its text model: the view inside of text_config, or `config` itself where its
// model_type is `flat`. Throws Error(unsupported) where text_config holds a model of another family.
JsonView text_model(const JsonView& config, std::string_view flat, std::string_view nested);

}  // namespace nibble
