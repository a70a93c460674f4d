#include "core/ops/ops.h"

#include <iterator>

namespace nibble {

const char* section_name(Section s) {
  constexpr const char* kNames[] = {"decode", "verify", "prefill"};
  return kNames[static_cast<int>(s)];
}

bool packs(const OpArgs& args) {
  return std::visit([](const auto& a) { return requires { a.pack; }; }, args);
}

const char* op_kind(const OpArgs& args) {
  constexpr const char* kNames[] = {
      "embed",          "rms_norm",     "quantize",  "linear",       "delta_conv", "delta_gates",
      "delta_rule",     "gated_rms_norm", "qk_norm_rope", "attention", "sigmoid_gate", "swiglu",
      "add",            "gather_rows",  "sample",    "token_logprob", "rms_norm_pack", "gated_rms_norm_pack",
      "swiglu_pack",    "expert_route", "grouped_linear", "expert_combine", "linear_swiglu", "delta_net",
      "add_rms_norm",   "add_rms_norm_pack", "gated_attention"};
  static_assert(std::size(kNames) == std::variant_size_v<OpArgs>);
  return kNames[args.index()];
}

}  // namespace nibble
