// finite.h: NaN and infinity in weights. A file that holds one answers garbage without a word, so
// every backend looks before it packs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint/weight.h"

namespace nibble {

// Rows [begin, end) of a weight whose bytes fit its shape. NVFP4's block scales are unsigned: one
// with a sign is as malformed as a NaN. Scales that Weight holds decoded were checked as they were
// read.
bool all_finite(const Weight& w, std::int64_t begin, std::int64_t end);

// The whole weight. Throws Error(bad_file) with file, tensor, the first such value and its place.
void check_finite(const Weight& w);

// "NaN at [3]", "-inf at [2, 0, 1]"; empty when all are finite.
std::string first_not_finite(const std::vector<float>& values,
                             const std::vector<std::int64_t>& shape);

}  // namespace nibble
