#include "models/dense_config.h"

#include <limits>

#include "core/checkpoint/tensor_info.h"
#include "models/config_keys.h"

namespace nibble {
namespace {

void read_heads(const JsonView& t, AbsentHeads absent, DenseConfig& c) {
  const bool derived = absent == AbsentHeads::derived;
  c.heads = t.integer("num_attention_heads", 1, kMostHeads);
  c.kv_heads = derived ? t.integer_or("num_key_value_heads", c.heads, 1, kMostHeads)
                       : t.integer("num_key_value_heads", 1, kMostHeads);
  if (c.heads % c.kv_heads != 0) {
    t.fail("num_key_value_heads", "expected a divisor of num_attention_heads " +
                                      std::to_string(c.heads) + ", found " +
                                      std::to_string(c.kv_heads));
  }
  if (!derived || t.has("head_dim")) {
    c.head_dim = t.integer("head_dim", 1, kMostDim);
    return;
  }
  if (c.hidden % c.heads != 0) {
    t.fail("head_dim", "missing, and hidden_size " + std::to_string(c.hidden) +
                           " is no multiple of num_attention_heads " + std::to_string(c.heads));
  }
  c.head_dim = c.hidden / c.heads;
}

void check_variant(const JsonView& t, std::int64_t layers) {
  if (const std::string act = t.string_or("hidden_act", "silu"); act != "silu") {
    unsupported(t, "hidden_act", "expected silu, found " + show_name(act));
  }
  for (const char* flag : {"attention_bias", "mlp_bias", "use_sliding_window"}) {
    if (t.boolean_or(flag, false)) unsupported(t, flag, "expected false, found true");
  }
  if (!t.has("layer_types")) return;
  const auto types = t.array("layer_types");
  if (static_cast<std::int64_t>(types.size()) != layers) {
    t.fail("layer_types", "expected num_hidden_layers " + std::to_string(layers) +
                              " entries, found " + std::to_string(types.size()));
  }
  for (const Json& type : types) {
    if (type == Json("full_attention")) continue;
    unsupported(t, "layer_types", "expected full_attention alone, found " + found_text(type));
  }
}

}  // namespace

DenseConfig read_dense_config(const JsonView& t, AbsentHeads absent) {
  DenseConfig c;
  c.vocab = t.integer("vocab_size", 1, 1 << 24);
  c.hidden = t.integer("hidden_size", 1, 1 << 20);
  c.intermediate = t.integer("intermediate_size", 1, 1 << 22);
  c.layers = t.integer("num_hidden_layers", 1, 10'000);
  c.max_positions = t.integer("max_position_embeddings", 1, 1ll << 31);
  read_heads(t, absent, c);
  check_variant(t, c.layers);
  c.rms_eps = static_cast<float>(
      t.number_or("rms_norm_eps", 1e-6, std::numeric_limits<float>::min(), 0.999));
  c.tied = t.boolean_or("tie_word_embeddings", false);
  c.rope = read_rope_config(t, c.head_dim);
  c.eos_ids = token_ids(t, "eos_token_id", c.vocab);
  token_ids(t, "bos_token_id", c.vocab);
  token_ids(t, "pad_token_id", c.vocab);
  return c;
}

}  // namespace nibble
