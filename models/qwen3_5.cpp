// qwen3_5.cpp: Qwen3.5 / 3.6 / 3.8 dense text models: gated delta net layers with every fourth one
// gated full attention, SwiGLU, zero-centred norms. Vision and draft-head tensors are not described.
// Relatives have a mixture of experts for an MLP and may keep the delta net's projections fused.
#include "models/qwen3_5.h"

#include <optional>
#include <variant>

#include "core/layers/layers.h"
#include "core/layers/mixture.h"
#include "models/qwen3_5_config.h"
#include "nibble/error.h"

namespace nibble {
namespace {

AttentionConfig attention_config(const Qwen3_5Config& c) {
  return {.hidden = c.hidden,
          .shape = {static_cast<std::int32_t>(c.heads), static_cast<std::int32_t>(c.kv_heads),
                    static_cast<std::int32_t>(c.head_dim)},
          .rope = {.theta = c.rope_theta, .rotary_dim = static_cast<std::int32_t>(c.rotary_dim)},
          .eps = c.rms_eps,
          .qk_norm = true,
          .norm_weight = NormWeight::zero_centred,
          .output_gate = true};
}

DeltaNetConfig delta_net_config(const Qwen3_5Config& c) {
  return {.hidden = c.hidden,
          .shape = {static_cast<std::int32_t>(c.linear_key_heads),
                    static_cast<std::int32_t>(c.linear_value_heads),
                    static_cast<std::int32_t>(c.linear_key_dim),
                    static_cast<std::int32_t>(c.linear_value_dim),
                    static_cast<std::int32_t>(c.conv_kernel)},
          .eps = c.rms_eps,
          .projections = c.fused_delta_projections ? DeltaProjections::by_key_head : DeltaProjections::apart};
}

MixtureConfig mixture_config(const Qwen3_5Config& c) {
  return {.hidden = c.hidden,
          .intermediate = c.expert_intermediate,
          .experts = c.experts,
          .per_token = c.experts_per_token,
          .normalised = c.normalised_experts,
          .shared_intermediate = c.shared_intermediate};
}

struct Block {
  std::string name;
  RmsNormLayer input_layernorm, post_attention_layernorm;
  std::variant<AttentionLayer, GatedDeltaNetLayer> mixer;
  std::variant<SwiGluLayer, MixtureLayer> mlp;

  Block(const Qwen3_5Config& c, const Weights& w, bool full_attention, bool sparse)
      : name(w.name()),
        input_layernorm(w / "input_layernorm", c.hidden, c.rms_eps, NormWeight::zero_centred),
        post_attention_layernorm(w / "post_attention_layernorm", c.hidden, c.rms_eps,
                                 NormWeight::zero_centred),
        mixer(make_mixer(c, w, full_attention)),
        mlp(make_mlp(c, w / "mlp", sparse)) {}

  static std::variant<AttentionLayer, GatedDeltaNetLayer> make_mixer(const Qwen3_5Config& c,
                                                                     const Weights& w, bool full) {
    if (full) return AttentionLayer(w / "self_attn", attention_config(c));
    return GatedDeltaNetLayer(w / "linear_attn", delta_net_config(c));
  }

  static std::variant<SwiGluLayer, MixtureLayer> make_mlp(const Qwen3_5Config& c, const Weights& w, bool sparse) {
    if (sparse) return MixtureLayer(w, mixture_config(c));
    return SwiGluLayer(w, c.hidden, c.intermediate);
  }

  Tensor operator()(Step& s, Tensor x) const {
    const Tensor h = input_layernorm(s, x);
    x = s.add(name + ".mixed", x, std::visit([&](const auto& layer) { return layer(s, h); }, mixer));
    const Tensor m = post_attention_layernorm(s, x);
    return s.add(name + ".out", x, std::visit([&](const auto& layer) { return layer(s, m); }, mlp));
  }
};

class Qwen3_5 final : public Decoder {
 public:
  Qwen3_5(std::string architecture, Qwen3_5Config config, const Weights& w)
      : architecture_(std::move(architecture)),
        config_(std::move(config)),
        embed_tokens_(w / "model.embed_tokens", config_.vocab, config_.hidden),
        norm_(w / "model.norm", config_.hidden, config_.rms_eps, NormWeight::zero_centred) {
    const Qwen3_5Config& c = config_;
    if (c.tied && w.has("lm_head")) {
      throw Error(ErrorCode::bad_file, "[" + architecture_ + "] tie_word_embeddings: expected false beside tensor \"" +
                                           (w / "lm_head").path() + ".weight\", found true");
    }
    if (!c.tied) lm_head_.emplace(w / "lm_head", c.vocab, c.hidden);
    for (std::size_t i = 0; i < c.full_attention.size(); ++i) {
      blocks_.emplace_back(c, w / "model.layers" / static_cast<int>(i), c.full_attention[i],
                           !c.sparse.empty() && c.sparse[i]);
    }
  }

  DecoderInfo info() const override {
    return {architecture_, static_cast<std::int64_t>(blocks_.size()), config_.hidden, config_.vocab,
            config_.max_positions, config_.eos_ids, config_.rope_theta, config_.rms_eps,
            config_.rotary_dim, config_.tied};
  }

  Tensor forward(Step& s) const override {
    Tensor x = embed_tokens_(s);
    for (const Block& block : blocks_) x = block(s, x);
    x = norm_(s, s.output_rows(x));
    return lm_head_ ? lm_head_->f32(s, x) : s.linear_f32("lm_head", x, embed_tokens_.weight());
  }

 private:
  std::string architecture_;
  Qwen3_5Config config_;
  EmbeddingLayer embed_tokens_;
  RmsNormLayer norm_;
  std::optional<LinearLayer> lm_head_;
  std::vector<Block> blocks_;
};

}  // namespace

std::unique_ptr<Decoder> make_qwen3_5(const JsonView& config, const Weights& weights) {
  return make_hybrid("qwen3_5", read_qwen3_5_config(config), weights);
}

std::unique_ptr<Decoder> make_hybrid(std::string architecture, Qwen3_5Config config, const Weights& weights) {
  return std::make_unique<Qwen3_5>(std::move(architecture), std::move(config), weights);
}

}  // namespace nibble
