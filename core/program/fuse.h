// fuse.h: rewrites of a traced program that let one op do the work of two or three and write the same bytes.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace nibble {

struct ActivationFormat;
struct Program;
struct Weight;

// Why a backend has no kernel that ends a linear layer of gate and up (weights as `gate`, input as `x`) in SwiGLU;
// null: it has one.
using SwiGluRefusal = const char* (*)(const Weight& gate, const ActivationFormat& x);

// Which rewrites; a backend says which of the fused ops it has.
struct Fusions {
  bool rms_norm_pack = false, gated_rms_norm_pack = false, swiglu_pack = false;
  bool linear_swiglu = false, delta_net = false, add_norm = false, gated_attention = false;
  SwiGluRefusal refusal = nullptr;  // null: there is a kernel for all
  static constexpr Fusions packs() { return {true, true, true}; }
};

// A Quantize and the op that makes its x become one Packed. Where others read x too, it is still
// written. To be called before plan().
void fuse(Program& program, const Fusions& which);

// An op that stays by itself, why, and the device's option that asks for more.
struct Apart {
  std::string op;
  const char* why;
  const char* option;  // "fused-swiglu", "fused-delta", "fused-add-norm", "fused-gate"
  bool operator==(const Apart&) const = default;
};
// The linear layers of gate and up and the SwiGlu behind them become one LinearSwiGlu with SwiGlu's name. Returns those
// that do not. To be called behind fuse(), before plan().
std::vector<Apart> fuse_swiglu(Program& program, SwiGluRefusal refusal, std::span<const Weight> weights);
// DeltaGates, DeltaConv and DeltaRule of a layer, and the GatedRmsNorm behind them, become one DeltaNet with the norm's
// name and place, or the last DeltaRule's where the norm stays apart or there is none. Returns norms, and rules of
// layers, that do. To be called behind fuse(), before plan().
std::vector<Apart> fuse_delta(Program& program);
// An Add and the RmsNorm that reads its sum, packed or not, become one AddRmsNorm with the norm's name and place. Returns
// norms of sums that do not. To be called behind fuse(), before plan().
std::vector<Apart> fuse_add_norm(Program& program);
// The Attentions of a layer and the SigmoidGate that alone reads what they make become one GatedAttention with the gate's
// name and place. Returns gates of attention that do not. To be called before plan().
std::vector<Apart> fuse_gate(Program& program);

}  // namespace nibble
