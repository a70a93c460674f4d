// dense.cpp: full attention and SwiGLU in every layer, plain norm weights, head tied or not.
#include "models/dense.h"

#include "core/layers/layers.h"

namespace nibble {
namespace {

AttentionConfig attention_config(const DenseConfig& c, bool qk_norm) {
  return {.hidden = c.hidden,
          .shape = c.attention(),
          .rope = c.rope,
          .eps = c.rms_eps,
          .qk_norm = qk_norm,
          .norm_weight = NormWeight::plain,
          .output_gate = false};
}

struct Block {
  std::string name;
  RmsNormLayer input_layernorm, post_attention_layernorm;
  AttentionLayer self_attn;
  SwiGluLayer mlp;

  Block(const DenseConfig& c, bool qk_norm, const Weights& w)
      : name(w.name()),
        input_layernorm(w / "input_layernorm", c.hidden, c.rms_eps, NormWeight::plain),
        post_attention_layernorm(w / "post_attention_layernorm", c.hidden, c.rms_eps,
                                 NormWeight::plain),
        self_attn(w / "self_attn", attention_config(c, qk_norm)),
        mlp(w / "mlp", c.hidden, c.intermediate) {}

  Tensor operator()(Step& s, Tensor x) const {
    x = s.add(name + ".mixed", x, self_attn(s, input_layernorm(s, x)));
    return s.add(name + ".out", x, mlp(s, post_attention_layernorm(s, x)));
  }
};

class Dense final : public Decoder {
 public:
  Dense(const char* architecture, const DenseConfig& c, bool qk_norm, const Weights& w)
      : architecture_(architecture),
        config_(c),
        embed_tokens_(w / "model.embed_tokens", c.vocab, c.hidden),
        norm_(w / "model.norm", c.hidden, c.rms_eps, NormWeight::plain),
        lm_head_(w / "lm_head", c.vocab, c.hidden, c.tied) {
    for (int i = 0; i < c.layers; ++i) blocks_.emplace_back(c, qk_norm, w / "model.layers" / i);
  }

  DecoderInfo info() const override {
    const DenseConfig& c = config_;
    return {architecture_, c.layers,  c.hidden,          c.vocab, c.max_positions, c.eos_ids,
            c.rope.theta, c.rms_eps, c.rope.rotary_dim, c.tied,  c.rope.scaling};
  }

  Tensor forward(Step& s) const override {
    Tensor x = embed_tokens_(s);
    for (const Block& block : blocks_) x = block(s, x);
    return lm_head_(s, norm_(s, s.output_rows(x)), embed_tokens_);
  }

 private:
  const char* architecture_;
  DenseConfig config_;
  EmbeddingLayer embed_tokens_;
  RmsNormLayer norm_;
  HeadLayer lm_head_;
  std::vector<Block> blocks_;
};

}  // namespace

std::unique_ptr<Decoder> make_dense(const char* architecture, const DenseConfig& c, bool qk_norm, const Weights& weights) {
  return std::make_unique<Dense>(architecture, c, qk_norm, weights);
}

}  // namespace nibble
