// qwen3_5_moe.cpp: Qwen3.5 text models whose every MLP is a mixture of experts with a shared one.
#include "models/qwen3_5_moe.h"

#include "models/config_keys.h"
#include "models/qwen3_5.h"

namespace nibble {
namespace {

Qwen3_5Config read(const JsonView& config) {
  const JsonView text = text_model(config, "qwen3_5_moe_text", "qwen3_5_moe");
  Qwen3_5Config c = read_hybrid_config(config, text);
  read_experts(text, c);
  // The family has no such keys; a file that sets them is another model.
  if (!text.boolean_or("norm_topk_prob", true)) {
    unsupported(text, "norm_topk_prob", "expected true, found false");
  }
  if (const auto step = text.integer_or("decoder_sparse_step", 1, 1, 10'000); step != 1) {
    unsupported(text, "decoder_sparse_step", "expected 1, found " + std::to_string(step));
  }
  if (text.has("mlp_only_layers") && !text.array("mlp_only_layers").empty()) {
    unsupported(text, "mlp_only_layers",
                    "expected no layers, found " + text.at("mlp_only_layers").json().dump());
  }
  c.sparse.assign(static_cast<std::size_t>(c.layers), true);
  return c;
}

}  // namespace

std::unique_ptr<Decoder> make_qwen3_5_moe(const JsonView& config, const Weights& weights) {
  return make_hybrid("qwen3_5_moe", read(config), weights);
}

}  // namespace nibble
