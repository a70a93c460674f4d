// delta_rule.h: the two forms of the gated delta rule; delta_rule() picks one by the section.
#pragma once

#include "backends/cuda/ops/sequence.h"

namespace nibble::cuda {

void delta_step(const Launch& to, const DeltaRuleArgs& args);    // decode, verify: row by row
void delta_chunks(const Launch& to, const DeltaRuleArgs& args);  // prefill: chunks of 64
void delta_units(const Launch& to, const DeltaRuleArgs& args);   // the same on matrix units, where there are records

}  // namespace nibble::cuda
