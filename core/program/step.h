// step.h: what a model's forward() describes into. A model is traced once for each program class;
// the traces share one table of weights, constants and state.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "core/program/fuse.h"
#include "core/program/program.h"
#include "core/program/rope.h"
#include "nibble/options.h"

namespace nibble {

struct TraceOptions {
  Activations activations = Activations::a16;
  DType operand = DType::f32;         // buffers between ops
  std::int64_t max_positions = 0;     // rows of the rope tables
  Fusions fusions;                    // rewrites of the traced program
};

// Collects the ModelSpec while classes are traced. Weights and constants are identified by address:
// the model object that owns them must outlive the traces.
class Tracer {
 public:
  explicit Tracer(const TraceOptions& how) : how_(how) {}

  const TraceOptions& options() const { return how_; }
  WeightId weight(const Weight& w);
  // Of the first; the others follow it.
  WeightId experts(const std::string& name, std::span<const Weight> all);
  ConstantId constant(const std::string& name, const std::vector<float>& data,
                      std::vector<std::int64_t> shape);
  ConstantId rope(const RopeConfig& config);
  ModelSpec& spec() { return spec_; }
  // The rewrites that the options ask for.
  void fuse(Program& program);
  // Ops that stayed by themselves where they were to be fused, each once.
  const std::vector<Apart>& apart() const { return apart_; }

 private:
  TraceOptions how_;
  ModelSpec spec_;
  std::map<const void*, std::int32_t> weights_, constants_;
  std::vector<std::pair<RopeConfig, ConstantId>> ropes_;
  std::vector<Apart> apart_;
};

class Step {
 public:
  Step(Tracer& tracer, const ProgramClass& cls);

  const ProgramClass& program_class() const { return program_.cls; }

  Tensor embed(const std::string& name, const Weight& table);
  Tensor rms_norm(const std::string& name, Tensor x, const std::vector<float>& weight, float eps);
  // y in the profile's operand type, or in float32 where it is added to the residual stream, feeds
  // gates or is the logits.
  Tensor linear(const std::string& name, Tensor x, const Weight& weight);
  Tensor linear_f32(const std::string& name, Tensor x, const Weight& weight);
  Tensor add(const std::string& name, Tensor a, Tensor b);
  Tensor swiglu(const std::string& name, Tensor gate, Tensor up);

  // A mixture of experts. All its layers have the same number of experts a token.
  ExpertRoute route(const std::string& name, Tensor logits, std::int32_t experts_per_token, bool normalised);
  // x: rows of tokens, or of sorted places that another grouped linear made. The result has a row for each place.
  Tensor grouped_linear(const std::string& name, Tensor x, const ExpertRoute& route,
                        std::span<const Weight> experts);
  Tensor grouped_linear_f32(const std::string& name, Tensor x, const ExpertRoute& route,
                            std::span<const Weight> experts);
  // shared, shared_gate: of an expert that serves every token, or both not valid().
  Tensor combine(const std::string& name, Tensor x, const ExpertRoute& route, Tensor shared = {},
                 Tensor shared_gate = {});

  // Rows whose logits are wanted.
  Tensor output_rows(Tensor x);

  struct DeltaInputs {
    Tensor qkv, a, b;
    const std::vector<float>*conv, *neg_exp_a, *dt_bias;
    DeltaShape shape;
  };
  // conv + silu + l2 norm, gates and the delta rule: [T, value_heads * value_dim].
  Tensor delta_net(const std::string& name, const DeltaInputs& in);
  Tensor gated_rms_norm(const std::string& name, Tensor x, Tensor z, const std::vector<float>& weight,
                        float eps);

  struct AttentionInputs {
    Tensor q, k, v;
    std::int64_t q_head_stride;
    const std::vector<float>*q_norm, *k_norm;  // null: no norm
    float eps;
    RopeConfig rope;
    AttentionShape shape;
    float scale;
  };
  Tensor attention(const std::string& name, const AttentionInputs& in);
  Tensor sigmoid_gate(const std::string& name, Tensor x, Tensor gate, const AttentionShape& shape,
                      std::int64_t gate_head_stride);

  // Ends the trace: sampling (or log-probabilities) over the logits, then planning.
  Program finish(Tensor logits);

 private:
  Tensor make(Rows rows, std::int64_t cols, DType dtype);
  Tensor make_operand(std::int64_t cols) { return make(Rows::tokens, cols, tracer_.options().operand); }
  void emit(std::string name, OpArgs args);
  Tensor linear(const std::string& name, Tensor x, const Weight& weight, DType y);
  const Quantize& quantised(const std::string& name, Tensor x, const ActivationFormat& format);
  Tensor grouped_linear(const std::string& name, Tensor x, const ExpertRoute& route,
                        std::span<const Weight> experts, DType y);

  Tracer& tracer_;
  Program program_;
  std::int32_t delta_layers_ = 0, attention_layers_ = 0;
  // One packed copy of an input serves every linear that declares the same format for it.
  std::vector<std::pair<Quantize, Tensor>> packed_;
};

}  // namespace nibble
