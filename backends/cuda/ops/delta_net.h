// delta_net.h: DeltaNet of core/ops/ops.h: a delta net between its projections and its output.
#pragma once

#include <string>

#include "backends/cuda/ops/rowwise.h"
#include "backends/cuda/ops/sequence.h"

namespace nibble::cuda {

struct DeltaNetArgs {
  DeltaConvArgs conv;  // sections of conv and rule: not looked at
  DeltaGatesArgs gates;
  DeltaRuleArgs rule;
  bool normed;
  GatedRmsNormArgs norm;  // of rule.y, where normed
  bool decode, verify, prefill;  // sections of the class
};
// Which kernels serve; of decode and verify rows also why not one launch.
std::string delta_net_kernel(const DeltaNetArgs& args);
void delta_net(const Launch& to, const DeltaNetArgs& args);

// Why delta_tokens() does not serve; null: it does.
const char* refuse_delta_tokens(const DeltaNetArgs& args);
// Decode and verify rows from x, a and b to y (`norm`) or to the rule's output, in one launch.
void delta_tokens(const Launch& to, const DeltaNetArgs& args, bool norm);

}  // namespace nibble::cuda
