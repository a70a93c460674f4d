// mixture.h: an MLP that is a mixture of experts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/layers/layers.h"

namespace nibble {

struct MixtureConfig {
  std::int64_t hidden = 0, intermediate = 0;  // of one expert
  std::int64_t experts = 0, per_token = 0;
  bool normalised = true;                // the weights of a token's experts are divided by their sum
  std::int64_t shared_intermediate = 0;  // of the expert that serves every token; 0: there is none
};

// gate chooses experts; y = sum of weight * down(silu(gate_proj x) * up_proj x) over them
//   + sigmoid(shared_expert_gate x) * shared_expert(x).
// Experts are stored one by one (experts.N.gate_proj, up_proj, down_proj in any format) or stacked:
// experts.gate_up_proj [experts, 2 * intermediate, hidden] with the gate's rows first, and
// experts.down_proj [experts, hidden, intermediate].
class MixtureLayer {
 public:
  MixtureLayer(const Weights& w, const MixtureConfig& c);
  Tensor operator()(Step& s, Tensor x) const;

 private:
  void read_single(const Weights& experts);
  void read_stacked(const Weights& experts);

  std::string name_;
  MixtureConfig config_;
  LinearLayer gate;
  std::vector<Weight> gate_proj, up_proj, down_proj;  // an expert each
  std::optional<SwiGluLayer> shared_expert;
  std::optional<LinearLayer> shared_expert_gate;
};

}  // namespace nibble
