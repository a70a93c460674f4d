// rowwise.h: launches of the ops that see one row at a time. Contracts: core/ops/ops.h.
#pragma once

#include "backends/cuda/launch.h"
#include "core/checkpoint/weight.h"

namespace nibble::cuda {

struct RmsNormArgs {
  View x;
  const float* weight;
  float eps;
  View y;
};
void rms_norm(const Launch& to, const RmsNormArgs& args);

struct QuantizeArgs {
  View x;
  ActivationFormat format;
  View codes, scales;  // scales.data null where the format has none
};
void quantize(const Launch& to, const QuantizeArgs& args);

struct GatedRmsNormArgs {
  View x, z;
  const float* weight;
  std::int32_t group;
  float eps;
  View y;
};
void gated_rms_norm(const Launch& to, const GatedRmsNormArgs& args);

struct SigmoidGateArgs {
  View x, gate;
  std::int32_t heads, head_dim;
  std::int64_t gate_head_stride;
  View y;
};
void sigmoid_gate(const Launch& to, const SigmoidGateArgs& args);

struct SwiGluArgs {
  View gate, up, y;
};
void swiglu(const Launch& to, const SwiGluArgs& args);

struct AddArgs {
  View a, b, y;
};
void add(const Launch& to, const AddArgs& args);

// AddRmsNorm: norm.x is add.y, which may be add.a.
struct AddRmsNormArgs {
  AddArgs add;
  RmsNormArgs norm;
};
void add_rms_norm(const Launch& to, const AddRmsNormArgs& args);

struct GatherRowsArgs {
  View x, y;
};
void gather_rows(const Launch& to, const GatherRowsArgs& args);

}  // namespace nibble::cuda
