// layers.h: what a model author composes. Members are named after the checkpoint; a layer's call
// describes ops, it computes nothing. (The short names, RmsNorm and so on, are the ops'.)
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/weights.h"
#include "core/program/step.h"

namespace nibble {

// How a norm's stored weight w becomes the factor that ops use.
enum class NormWeight { plain /* w */, zero_centred /* 1 + w */ };

std::vector<float> norm_factor(const Weights& w, std::int64_t size, NormWeight kind);

class EmbeddingLayer {
 public:
  EmbeddingLayer(const Weights& w, std::int64_t vocab, std::int64_t hidden)
      : name_(w.name()), weight_(w.matrix(vocab, hidden)) {}
  Tensor operator()(Step& s) const { return s.embed(name_, weight_); }
  const Weight& weight() const { return weight_; }

 private:
  std::string name_;
  Weight weight_;
};

// y = x W^T.
class LinearLayer {
 public:
  LinearLayer(const Weights& w, std::int64_t out, std::int64_t in)
      : name_(w.name()), weight_(w.matrix(out, in)) {}
  LinearLayer(std::string name, Weight weight) : name_(std::move(name)), weight_(std::move(weight)) {}
  Tensor operator()(Step& s, Tensor x) const { return s.linear(name_, x, weight_); }
  // For the residual stream, gates and logits.
  Tensor f32(Step& s, Tensor x) const { return s.linear_f32(name_, x, weight_); }

 private:
  friend void join(std::initializer_list<LinearLayer*> layers);
  std::string name_;
  Weight weight_;
};

// Layers that read one input: those whose weights and inputs have one format are joined (Weight::joined_rows). To be said
// before a step is described.
void join(std::initializer_list<LinearLayer*> layers);

class RmsNormLayer {
 public:
  RmsNormLayer(const Weights& w, std::int64_t size, float eps, NormWeight kind)
      : name_(w.name()), weight_(norm_factor(w, size, kind)), eps_(eps) {}
  Tensor operator()(Step& s, Tensor x) const { return s.rms_norm(name_, x, weight_, eps_); }

 private:
  std::string name_;
  std::vector<float> weight_;
  float eps_;
};

// Logits: a matrix of its own, or the embedding's table where the two are tied.
class HeadLayer {
 public:
  // Throws Error(bad_file) for a tied head that the checkpoint holds a matrix for all the same.
  HeadLayer(const Weights& w, std::int64_t vocab, std::int64_t hidden, bool tied);
  bool tied() const { return !own_; }
  Tensor operator()(Step& s, Tensor x, const EmbeddingLayer& table) const {
    return own_ ? own_->f32(s, x) : s.linear_f32(name_, x, table.weight());
  }

 private:
  std::string name_;
  std::optional<LinearLayer> own_;
};

// down(silu(gate x) * up x)
class SwiGluLayer {
 public:
  SwiGluLayer(const Weights& w, std::int64_t hidden, std::int64_t intermediate)
      : name_(w.name()),
        gate_proj(w / "gate_proj", intermediate, hidden),
        up_proj(w / "up_proj", intermediate, hidden),
        down_proj(w / "down_proj", hidden, intermediate) {}
  Tensor operator()(Step& s, Tensor x) const;

 private:
  std::string name_;
  LinearLayer gate_proj, up_proj, down_proj;
};

struct AttentionConfig {
  std::int64_t hidden = 0;
  AttentionShape shape{};
  RopeConfig rope;
  float eps = 1e-6f;
  bool qk_norm = false;
  NormWeight norm_weight = NormWeight::plain;
  // q_proj gives, per head, head_dim query columns and then head_dim gate columns.
  bool output_gate = false;
};

class AttentionLayer {
 public:
  AttentionLayer(const Weights& w, const AttentionConfig& c);
  Tensor operator()(Step& s, Tensor x) const;

 private:
  std::string name_;
  AttentionConfig config_;
  LinearLayer q_proj, k_proj, v_proj, o_proj;
  std::vector<float> q_norm, k_norm;
};

// How a checkpoint keeps the projections of a delta net.
enum class DeltaProjections {
  apart,          // in_proj_qkv, in_proj_z, in_proj_a, in_proj_b
  by_key_head,    // in_proj_qkvz: q, k, v and z rows of a key head, then the next; in_proj_ba: b and a
};

struct DeltaNetConfig {
  std::int64_t hidden = 0;
  DeltaShape shape{};
  float eps = 1e-6f;
  DeltaProjections projections = DeltaProjections::apart;
};

class GatedDeltaNetLayer {
 public:
  GatedDeltaNetLayer(const Weights& w, const DeltaNetConfig& c);
  Tensor operator()(Step& s, Tensor x) const;

 private:
  struct Projections {
    Weight qkv, z, a, b;
  };
  GatedDeltaNetLayer(const Weights& w, const DeltaNetConfig& c, Projections in);
  static Projections read(const Weights& w, const DeltaNetConfig& c);

  std::string name_;
  DeltaNetConfig config_;
  LinearLayer in_proj_qkv, in_proj_z, in_proj_a, in_proj_b, out_proj;
  std::vector<float> conv1d, neg_exp_a, dt_bias, norm;
};

}  // namespace nibble
