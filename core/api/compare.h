// compare.h: the comparison behind nibble/parity.h, on probes that a test may have made.
#pragma once

#include "core/api/probe.h"
#include "nibble/parity.h"

namespace nibble {

// Bits, but all NaN count as one value.
bool same_bits(float a, float b);

// Fills kinds, work and first.
void compare(Probe& a, Probe& b, const ParityOptions& how, ParityReport& report);
// Fills kinds, work and bound. `on` keeps its weights.
void compare_with_reference(Probe& on, const ParityOptions& how, Float64Report& report);

}  // namespace nibble
