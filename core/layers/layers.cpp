#include "core/layers/layers.h"

#include <cmath>

#include "core/checkpoint/row_runs.h"
#include "nibble/error.h"

namespace nibble {

std::vector<float> norm_factor(const Weights& w, std::int64_t size, NormWeight kind) {
  return w.vector(size, kind == NormWeight::zero_centred ? Fold::one_plus : Fold::none);
}

void join(std::initializer_list<LinearLayer*> layers) {
  const auto alike = [](const Weight& a, const Weight& b) {
    return a.format == b.format && a.scale_layout == b.scale_layout && a.activation == b.activation && a.cols == b.cols;
  };
  for (LinearLayer* layer : layers) {
    std::int64_t rows = 0;
    int count = 0;
    for (const LinearLayer* other : layers) {
      if (!alike(layer->weight_, other->weight_)) continue;
      rows += other->weight_.rows;
      ++count;
    }
    layer->weight_.joined_rows = count > 1 ? rows : 0;
  }
}

HeadLayer::HeadLayer(const Weights& w, std::int64_t vocab, std::int64_t hidden, bool tied)
    : name_(w.name()) {
  if (!tied) {
    own_.emplace(w, vocab, hidden);
  } else if (w.has("")) {
    throw Error(ErrorCode::bad_file, "[weights] tie_word_embeddings: expected false beside tensor \"" +
                                         w.path() + ".weight\", found true");
  }
}

Tensor SwiGluLayer::operator()(Step& s, Tensor x) const {
  const Tensor gate = gate_proj(s, x), up = up_proj(s, x);
  return down_proj.f32(s, s.swiglu(name_ + ".swiglu", gate, up));
}

AttentionLayer::AttentionLayer(const Weights& w, const AttentionConfig& c)
    : name_(w.name()),
      config_(c),
      q_proj(w / "q_proj", std::int64_t{c.shape.heads} * c.shape.head_dim * (c.output_gate ? 2 : 1),
             c.hidden),
      k_proj(w / "k_proj", std::int64_t{c.shape.kv_heads} * c.shape.head_dim, c.hidden),
      v_proj(w / "v_proj", std::int64_t{c.shape.kv_heads} * c.shape.head_dim, c.hidden),
      o_proj(w / "o_proj", c.hidden, std::int64_t{c.shape.heads} * c.shape.head_dim) {
  if (c.qk_norm) {
    q_norm = norm_factor(w / "q_norm", c.shape.head_dim, c.norm_weight);
    k_norm = norm_factor(w / "k_norm", c.shape.head_dim, c.norm_weight);
  }
  join({&q_proj, &k_proj, &v_proj});
}

Tensor AttentionLayer::operator()(Step& s, Tensor x) const {
  const std::int64_t dim = config_.shape.head_dim, heads = config_.shape.heads;
  const std::int64_t stride = config_.output_gate ? 2 * dim : dim;
  const Tensor q = q_proj(s, x), k = k_proj(s, x), v = v_proj(s, x);
  // Views: head h of the queries starts at column h * stride, of the gate dim columns later.
  const std::int64_t view = (heads - 1) * stride + dim;
  Tensor y = s.attention(name_, {q.slice(0, view), k, v, stride, config_.qk_norm ? &q_norm : nullptr,
                                 config_.qk_norm ? &k_norm : nullptr, config_.eps, config_.rope,
                                 config_.shape, static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)))});
  if (config_.output_gate) {
    y = s.sigmoid_gate(name_ + ".gate", y, q.slice(dim, view), config_.shape, stride);
  }
  return o_proj.f32(s, y);
}

GatedDeltaNetLayer::Projections GatedDeltaNetLayer::read(const Weights& w, const DeltaNetConfig& c) {
  const DeltaShape& shape = c.shape;
  if (c.projections == DeltaProjections::apart) {
    return {(w / "in_proj_qkv").matrix(shape.channels(), c.hidden),
            (w / "in_proj_z").matrix(shape.value_channels(), c.hidden),
            (w / "in_proj_a").matrix(shape.value_heads, c.hidden),
            (w / "in_proj_b").matrix(shape.value_heads, c.hidden)};
  }
  const std::int64_t heads = shape.key_heads, key = shape.key_dim, each = shape.value_heads / heads;
  const std::int64_t value = each * shape.value_dim;  // rows of a key head's values
  const Weight qkvz = (w / "in_proj_qkvz").matrix(shape.channels() + shape.value_channels(), c.hidden);
  const Weight ba = (w / "in_proj_ba").matrix(2 * std::int64_t{shape.value_heads}, c.hidden);
  // Rows first .. first + count of every key head's group.
  const auto add = [heads](std::vector<RowRun>& to, std::int64_t group, std::int64_t first, std::int64_t count) {
    for (std::int64_t h = 0; h < heads; ++h) to.push_back({h * group + first, count});
  };
  const std::int64_t group = 2 * (key + value);
  std::vector<RowRun> qkv, z, a, b;
  add(qkv, group, 0, key);
  add(qkv, group, key, key);
  add(qkv, group, 2 * key, value);
  add(z, group, 2 * key + value, value);
  add(b, 2 * each, 0, each);
  add(a, 2 * each, each, each);
  return {rows_of(qkvz, (w / "in_proj_qkv").path(), qkv), rows_of(qkvz, (w / "in_proj_z").path(), z),
          rows_of(ba, (w / "in_proj_a").path(), a), rows_of(ba, (w / "in_proj_b").path(), b)};
}

GatedDeltaNetLayer::GatedDeltaNetLayer(const Weights& w, const DeltaNetConfig& c)
    : GatedDeltaNetLayer(w, c, read(w, c)) {}

GatedDeltaNetLayer::GatedDeltaNetLayer(const Weights& w, const DeltaNetConfig& c, Projections in)
    : name_(w.name()),
      config_(c),
      in_proj_qkv((w / "in_proj_qkv").name(), std::move(in.qkv)),
      in_proj_z((w / "in_proj_z").name(), std::move(in.z)),
      in_proj_a((w / "in_proj_a").name(), std::move(in.a)),
      in_proj_b((w / "in_proj_b").name(), std::move(in.b)),
      out_proj(w / "out_proj", c.hidden, c.shape.value_channels()),
      conv1d((w / "conv1d").tensor({c.shape.channels(), 1, c.shape.conv_kernel})),
      neg_exp_a((w / "A_log").vector(c.shape.value_heads, Fold::neg_exp)),
      dt_bias((w / "dt_bias").vector(c.shape.value_heads)),
      norm((w / "norm").vector(c.shape.value_dim)) {
  join({&in_proj_qkv, &in_proj_z, &in_proj_a, &in_proj_b});
}

Tensor GatedDeltaNetLayer::operator()(Step& s, Tensor x) const {
  // The small ones behind: before the large ones they cost a decode step of an H200 6 µs a layer more.
  const Tensor qkv = in_proj_qkv(s, x), z = in_proj_z(s, x);
  const Tensor a = in_proj_a.f32(s, x), b = in_proj_b.f32(s, x);
  const Tensor o = s.delta_net(name_, {qkv, a, b, &conv1d, &neg_exp_a, &dt_bias, config_.shape});
  return out_proj.f32(s, s.gated_rms_norm(name_ + ".norm", o, z, norm, config_.eps));
}

}  // namespace nibble
