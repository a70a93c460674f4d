// weight_rows.h: rows of a weight as the numbers that they stand for, in float64, all scales applied.
#pragma once

#include <cstdint>

#include "core/checkpoint/weight.h"

namespace nibble {

// out [weight.cols]
void weight_row(const Weight& weight, std::int64_t row, double* out);

}  // namespace nibble
