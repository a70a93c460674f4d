// qwen3_next.cpp: Qwen3-Next: as Qwen3.5 with experts, but the delta net's projections are fused by key
// head, and layers may have a plain MLP.
#include "models/qwen3_next.h"

#include <algorithm>

#include "models/config_keys.h"
#include "models/qwen3_5.h"

namespace nibble {
namespace {

constexpr std::int64_t kMostLayers = 10'000, kMostIntermediate = 1 << 22;

// mlp_only_layers are plain, and of the others all but every decoder_sparse_step-th.
void read_sparse_layers(const JsonView& config, Qwen3_5Config& c) {
  const std::int64_t step = config.integer_or("decoder_sparse_step", 1, 1, kMostLayers);
  for (std::int64_t i = 0; i < c.layers; ++i) c.sparse.push_back((i + 1) % step == 0);
  if (config.has("mlp_only_layers")) {
    for (const Json& layer : config.array("mlp_only_layers")) {
      if (!layer.is_integer() || layer.as_double() < 0 || layer.as_double() >= static_cast<double>(c.layers)) {
        config.fail("mlp_only_layers", "expected layers below num_hidden_layers " + std::to_string(c.layers) +
                                           ", found " +
                                           found_text(layer));
      }
      c.sparse[static_cast<std::size_t>(layer.as_int())] = false;
    }
  }
  if (std::find(c.sparse.begin(), c.sparse.end(), true) == c.sparse.end()) {
    unsupported(config, config.has("mlp_only_layers") ? "mlp_only_layers" : "decoder_sparse_step",
                    "expected at least one of " + std::to_string(c.layers) +
                        " layers with experts, found none (decoder_sparse_step " + std::to_string(step) + ")");
  }
  if (std::find(c.sparse.begin(), c.sparse.end(), false) != c.sparse.end()) {
    c.intermediate = config.integer("intermediate_size", 1, kMostIntermediate);
  }
}

Qwen3_5Config read(const JsonView& config) {
  Qwen3_5Config c = read_hybrid_config(config, config);
  read_experts(config, c);
  c.normalised_experts = config.boolean_or("norm_topk_prob", true);
  c.fused_delta_projections = true;
  read_sparse_layers(config, c);
  return c;
}

}  // namespace

std::unique_ptr<Decoder> make_qwen3_next(const JsonView& config, const Weights& weights) {
  return make_hybrid("qwen3_next", read(config), weights);
}

}  // namespace nibble
