// reference.h: every op's formula (core/ops/ops.h) in float64, for one sequence. Buffers hold what a
// device has shown, so that each op is judged by its own inputs; what a device does not show (beta, the
// scales of quantised activations) is computed here. Keys, values, convolution inputs and the recurrent
// state are this evaluation's own from the first row on. All rows of the delta rule, whatever their
// section, follow the recurrence: the chunked form is the same formula.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backends/backend.h"

namespace nibble {

class Reference {
 public:
  explicit Reference(const ModelSpec& spec);  // `spec` has its weights, and outlives this

  void begin(const Program& program, const Batch& batch);  // of one range, slot 0

  struct Result {
    std::vector<double> values;  // [rows, cols] of the op's first output
    bool exact = false;          // by contract: the device must have just these
    // Of a linear layer with a few outputs: the size that each sum had if the signs of its terms were
    // random. Terms may cancel in all of so few, which then say nothing of the size of a rounding.
    std::vector<double> sizes;
  };
  // The op's formula on what its inputs hold.
  Result evaluate(const Op& op);
  // Puts what the device shows of the op's first output in place, for the ops that read it.
  void show(const Op& op, std::span<const float> data);

  struct State {
    struct Delta {
      std::vector<double> s;     // [value_heads, key_dim, value_dim]
      std::vector<double> conv;  // [channels, kernel - 1], oldest first
    };
    struct Kv {
      std::vector<double> k, v;  // [positions, kv_heads * head_dim]
    };
    std::vector<Delta> delta;
    std::vector<Kv> kv;
  };
  const State& state() const { return state_; }

 private:
  struct View {  // element (r, c) at data[r * stride + c]
    double* data;
    std::int64_t rows, cols, stride;
    double* row(std::int64_t r) const { return data + r * stride; }
  };
  View view(const Tensor& t);
  const std::vector<float>& constant(ConstantId id) const;
  const Weight& weight(WeightId id) const;

  void eval(const Embed& a, Result& out);
  void eval(const RmsNorm& a, Result& out);
  void eval(const Quantize& a, Result& out);
  void eval(const Linear& a, Result& out);
  void eval(const DeltaConv& a, Result& out);
  void eval(const DeltaGates& a, Result& out);
  void eval(const DeltaRule& a, Result& out);
  void eval(const GatedRmsNorm& a, Result& out);
  void eval(const QkNormRope& a, Result& out);
  void eval(const Attention& a, Result& out);
  void eval(const SigmoidGate& a, Result& out);
  void eval(const SwiGlu& a, Result& out);
  void eval(const Add& a, Result& out);
  void eval(const GatherRows& a, Result& out);
  void eval(const Sample& a, Result& out);
  void eval(const TokenLogprob& a, Result& out);
  void eval(const ExpertRoute& a, Result& out);
  void eval(const GroupedLinear& a, Result& out);
  void eval(const ExpertCombine& a, Result& out);

  // x of a linear layer as numbers, [rows, K].
  std::vector<double> activations(const Tensor& x, const Tensor& x_scales, const ActivationFormat& format,
                                  std::int64_t cols);
  std::int64_t rows_of(const Tensor& t) const;

  const ModelSpec& spec_;
  const Program* program_ = nullptr;
  const Batch* batch_ = nullptr;
  std::vector<std::vector<double>> buffers_;
  State state_;
};

}  // namespace nibble
