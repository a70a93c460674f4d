// delta_rule.h: the forms of the gated delta rule; delta_rule() picks one by the section and where there are records.
#pragma once

#include "backends/cuda/ops/sequence.h"

namespace nibble::cuda {

void delta_step(const Launch& to, const DeltaRuleArgs& args);    // decode, verify: row by row
// Whether a column's state stays in registers there.
constexpr bool delta_in_registers(const DeltaShape& d) { return d.key_dim == 32 || d.key_dim == 128; }
void delta_chunks(const Launch& to, const DeltaRuleArgs& args);  // prefill: chunks of 64
void delta_units(const Launch& to, const DeltaRuleArgs& args);   // as core/numerics/delta_order.h has them for sm90
void delta_units_sm70(const Launch& to, const DeltaRuleArgs& args);  // and for sm70
// The same bits as delta_units() on any card: what it launches where matrix units do not serve. Needs no records.
void delta_units_plain(const Launch& to, const DeltaRuleArgs& args);

}  // namespace nibble::cuda
