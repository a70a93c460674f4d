// row_runs.h: a matrix made of some rows of another: one expert of a stack, or one projection of
// several that a checkpoint keeps fused, with its heads in the model's order.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/checkpoint/weight.h"

namespace nibble {

struct RowRun {
  std::int64_t first = 0, count = 0;
};

// The rows of `runs`, one run behind the other. A single run of what lies in a file is a view of it;
// otherwise the rows are gathered when a backend asks, and a weight that makes itself is made for each
// matrix taken from it. Throws Error(unsupported) where 128 x 128 blocks of scales would be cut.
Weight rows_of(const Weight& whole, std::string name, std::span<const RowRun> runs);

}  // namespace nibble
