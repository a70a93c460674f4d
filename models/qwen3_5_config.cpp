#include "models/qwen3_5_config.h"

#include <cmath>
#include <limits>

#include "core/checkpoint/tensor_info.h"
#include "core/ops/expert_limits.h"
#include "models/config_keys.h"
#include "models/model_type.h"
#include "nibble/error.h"

namespace nibble {
namespace {

constexpr std::int64_t kMostIntermediate = 1 << 22;

void read_sizes(const JsonView& t, Qwen3_5Config& c) {
  c.vocab = t.integer("vocab_size", 1, 1 << 24);
  c.hidden = t.integer("hidden_size", 1, 1 << 20);
  c.layers = t.integer("num_hidden_layers", 1, 10'000);
  c.heads = t.integer("num_attention_heads", 1, kMostHeads);
  c.kv_heads = t.integer("num_key_value_heads", 1, kMostHeads);
  c.head_dim = t.integer("head_dim", 1, kMostDim);
  c.linear_key_heads = t.integer("linear_num_key_heads", 1, kMostHeads);
  c.linear_value_heads = t.integer("linear_num_value_heads", 1, kMostHeads);
  c.linear_key_dim = t.integer("linear_key_head_dim", 1, kMostDim);
  c.linear_value_dim = t.integer("linear_value_head_dim", 1, kMostDim);
  c.conv_kernel = t.integer("linear_conv_kernel_dim", 1, 32);
  c.max_positions = t.integer("max_position_embeddings", 1, 1ll << 31);
  c.mtp_layers = t.integer_or("mtp_num_hidden_layers", 0, 0, 64);
  if (c.heads % c.kv_heads != 0) {
    t.fail("num_key_value_heads", "expected a divisor of num_attention_heads " +
                                      std::to_string(c.heads) + ", found " +
                                      std::to_string(c.kv_heads));
  }
  if (c.linear_value_heads % c.linear_key_heads != 0) {
    t.fail("linear_num_key_heads", "expected a divisor of linear_num_value_heads " +
                                       std::to_string(c.linear_value_heads) + ", found " +
                                       std::to_string(c.linear_key_heads));
  }
}

void read_rope(const JsonView& t, Qwen3_5Config& c) {
  // Newer files keep all of it in rope_parameters, older ones flat; a default theta would be wrong.
  const bool nested = t.has("rope_parameters");
  const JsonView rope = nested ? t.object("rope_parameters") : t;
  if (!nested && t.has("rope_scaling")) {
    unsupported(t, "rope_scaling", "expected null or rope_parameters of rope_type default, found " +
                                      found_text(t.at("rope_scaling").json()));
  }
  if (!nested && !t.has("rope_theta"))
    t.fail("rope_parameters", "missing, and no rope_theta either");
  if (const std::string type = nested ? rope.string_or("rope_type", "default") : "default";
      type != "default") {
    unsupported(rope, "rope_type", "expected default, found " + show_name(type));
  }
  const JsonView& theta = rope.has("rope_theta") || !t.has("rope_theta") ? rope : t;
  c.rope_theta = theta.number("rope_theta", std::numeric_limits<float>::min(),
                              std::numeric_limits<float>::max());

  const JsonView& part = rope.has("partial_rotary_factor") ? rope : t;
  const double factor =
      part.number_or("partial_rotary_factor", 0.25, std::numeric_limits<float>::min(), 1.0);
  const double dims = factor * static_cast<double>(c.head_dim);
  c.rotary_dim = std::llround(dims);
  if (std::abs(dims - static_cast<double>(c.rotary_dim)) > 1e-6 || c.rotary_dim % 2 != 0 ||
      c.rotary_dim == 0) {
    part.fail("partial_rotary_factor", "expected an even number of rotary dimensions of head_dim " +
                                           std::to_string(c.head_dim) + ", found " +
                                           std::to_string(dims));
  }
  if (!rope.has("mrope_section")) return;
  std::int64_t pairs = 0;
  for (const Json& section : rope.array("mrope_section")) {
    if (!section.is_integer() || section.as_double() < 0 || section.as_double() > 1 << 20) {
      rope.fail("mrope_section",
                "expected integers from 0 to 1048576, found " + found_text(section));
    }
    pairs = std::min<std::int64_t>(pairs + section.as_int(), 1 << 20);
  }
  if (2 * pairs != c.rotary_dim) {
    rope.fail("mrope_section", "expected sections that add up to " +
                                   std::to_string(c.rotary_dim / 2) + ", found " +
                                   std::to_string(pairs));
  }
}

void read_layer_types(const JsonView& t, Qwen3_5Config& c) {
  const std::int64_t interval = t.integer_or("full_attention_interval", 4, 1, 10'000);
  if (!t.has("layer_types")) {
    for (std::int64_t i = 0; i < c.layers; ++i) {
      c.full_attention.push_back((i + 1) % interval == 0);
    }
    return;
  }
  const auto types = t.array("layer_types");
  if (static_cast<std::int64_t>(types.size()) != c.layers) {
    t.fail("layer_types", "expected num_hidden_layers " + std::to_string(c.layers) +
                              " entries, found " + std::to_string(types.size()));
  }
  for (const Json& type : types) {
    if (!type.is_string()) {
      t.fail("layer_types", std::string("expected strings, found one ") + type.type_name());
    }
    const bool full = type.as_string() == "full_attention";
    if (!full && type.as_string() != "linear_attention") {
      t.fail("layer_types",
             "expected linear_attention or full_attention, found " + show_name(type.as_string()));
    }
    c.full_attention.push_back(full);
  }
}

// Variants that share the model type but compute something else.
void check_variant(const JsonView& t) {
  if (const std::string act = t.string_or("hidden_act", "silu"); act != "silu") {
    unsupported(t, "hidden_act", "expected silu, found " + show_name(act));
  }
  for (const char* flag : {"attention_bias", "use_sliding_window"}) {
    if (t.boolean_or(flag, false)) unsupported(t, flag, "expected false, found true");
  }
  if (!t.boolean_or("attn_output_gate", true)) {
    unsupported(t, "attn_output_gate", "expected true, found false");
  }
  if (t.boolean_or("mtp_use_dedicated_embeddings", false)) {
    unsupported(t, "mtp_use_dedicated_embeddings", "expected false, found true");
  }
}

}  // namespace

JsonView text_model(const JsonView& config, std::string_view flat, std::string_view nested) {
  const JsonView t = model_type_of(config) == flat ? config : config.object("text_config");
  // What wraps the text model may be of the family while the text model is not.
  if (const std::string type = t.string_or("model_type", std::string(flat)); type != flat && type != nested) {
    unsupported(t, "model_type", "expected " + std::string(flat) + ", found " + show_name(type));
  }
  return t;
}

Qwen3_5Config read_hybrid_config(const JsonView& config, const JsonView& t) {
  Qwen3_5Config c;
  read_sizes(t, c);
  check_variant(t);
  c.rms_eps = static_cast<float>(
      t.number_or("rms_norm_eps", 1e-6, std::numeric_limits<float>::min(), 0.999));
  // The outer flag is the one that ties the model that was saved.
  const bool inner = t.boolean_or("tie_word_embeddings", false);
  c.tied = config.boolean_or("tie_word_embeddings", inner);
  read_rope(t, c);
  read_layer_types(t, c);
  c.eos_ids = token_ids(t.has("eos_token_id") ? t : config, "eos_token_id", c.vocab);
  token_ids(t, "bos_token_id", c.vocab);
  token_ids(t, "pad_token_id", c.vocab);
  return c;
}

void read_experts(const JsonView& t, Qwen3_5Config& c) {
  c.experts = t.integer("num_experts", 1, kMostExperts);
  c.experts_per_token = t.integer("num_experts_per_tok", 1, kMostExperts);
  if (c.experts_per_token > c.experts) {
    t.fail("num_experts_per_tok", "expected at most num_experts " + std::to_string(c.experts) + ", found " +
                                      std::to_string(c.experts_per_token));
  }
  c.expert_intermediate = t.integer("moe_intermediate_size", 1, kMostIntermediate);
  c.shared_intermediate = t.integer("shared_expert_intermediate_size", 1, kMostIntermediate);
}

Qwen3_5Config read_qwen3_5_config(const JsonView& config) {
  const JsonView text = text_model(config, "qwen3_5_text", "qwen3_5");
  Qwen3_5Config c = read_hybrid_config(config, text);
  c.intermediate = text.integer("intermediate_size", 1, kMostIntermediate);
  return c;
}

}  // namespace nibble
