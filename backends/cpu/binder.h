// binder.h: turns an op of a program into a call on addresses.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "backends/cpu/loaded.h"
#include "backends/cpu/ops/linear.h"
#include "backends/cpu/ops/pack.h"
#include "core/ops/ops.h"

namespace nibble::cpu {

class Binder {
 public:
  using Call = std::function<void(const Step&)>;

  Binder(Loaded& loaded, const Program& program, const Widened& wide, BoundProgram& bound)
      : l_(loaded), program_(program), wide_(wide), bound_(bound) {}
  // `rounded`: the op's output is rounded (mirror.h).
  BoundOp bind(const Op& op, bool rounded);

 private:
  struct View {
    float* data = nullptr;
    std::int64_t stride = 0, cols = 0;
    Rows rows = Rows::tokens;
  };

  // One overload for each op. Each sets output_ (and section_) for observers.
  Call call(const Embed& a);
  Call call(const RmsNorm& a);
  Call call(const Quantize& a);
  Call call(const Linear& a);
  Call call(const DeltaConv& a);
  Call call(const DeltaGates& a);
  Call call(const DeltaRule& a);
  Call call(const GatedRmsNorm& a);
  Call call(const QkNormRope& a);
  Call call(const Attention& a);
  Call call(const SigmoidGate& a);
  Call call(const SwiGlu& a);
  Call call(const Add& a);
  Call call(const GatherRows& a);
  Call call(const Sample& a);
  Call call(const TokenLogprob& a);
  Call call(const Packed<RmsNorm>& a);
  Call call(const Packed<GatedRmsNorm>& a);
  Call call(const Packed<SwiGlu>& a);
  Call call(const ExpertRoute& a);
  Call call(const GroupedLinear& a);
  Call call(const ExpertCombine& a);
  Call call(const LinearSwiGlu& a);
  Call call(const DeltaNet& a);
  Call call(const AddRmsNorm& a);
  Call call(const Packed<AddRmsNorm>& a);
  Call call(const GatedAttention& a);

  [[noreturn]] void fail(const std::string& what) const;
  void expect(bool good, const char* field, const char* wanted) const;
  void expect_equal(const char* field, std::int64_t wanted, std::int64_t found) const;
  // Address of a tensor with `cols` columns (0: any) of this type, inside its buffer and the
  // scratch.
  std::byte* address(const char* field, const Tensor& t, DType dtype, std::int64_t cols) const;
  View f32(const char* field, const Tensor& t, std::int64_t cols = 0) const;
  // Where the rows of an f16 buffer have their exponents; null for others.
  std::int32_t* exponents(const Tensor& t) const;
  View rows_like(const char* field, const Tensor& t, const View& other,
                 std::int64_t cols = 0) const;
  SumArgs sum_args(const Add& a) const;
  // Codes, scales and rows of Quantize for an input of these columns and rows.
  QuantizeArgs quantize_args(const ActivationFormat& format, const Tensor& codes,
                             const Tensor& scales, std::int64_t cols, Rows rows) const;
  // The same, and y of `first`, which may not be valid().
  PackArgs pack_args(const Pack& pack, const Tensor& y, std::int64_t cols, Rows rows) const;
  const PackedWeight& weight(WeightId id) const;
  // What linear layers of either form take their rows from; weight, rows and y are the caller's.
  LinearArgs linear_input(const Tensor& x, const Tensor& x_scales, const ActivationFormat& format,
                          std::int64_t cols) const;
  // [T, k] or [T * k, 1] of an ExpertRoute, rows without gaps.
  std::int32_t* indices(const char* field, const Tensor& t, Rows rows, std::int64_t cols) const;
  // Data of a constant of `count` elements.
  const ConstantView& constant(const char* field, ConstantId id) const;
  const float* constant(const char* field, ConstantId id, std::int64_t count) const;
  const DeltaShape& delta_layer(std::int32_t layer, const DeltaShape& shape) const;
  void attention_layer(std::int32_t layer, const AttentionShape& shape) const;

  Loaded& l_;
  const Program& program_;
  const Widened& wide_;
  BoundProgram& bound_;
  const Op* op_ = nullptr;
  Tensor output_;
  const Section* section_ = nullptr;
  bool rounded_ = false;
};

}  // namespace nibble::cpu
