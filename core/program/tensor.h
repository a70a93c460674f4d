// tensor.h: what a description passes from op to op: a typed view of a planned buffer.
#pragma once

#include <cstdint>

#include "core/base/dtype.h"

namespace nibble {

// Number of rows is known only in a step; a program knows which count it is and its maximum.
enum class Rows : std::uint8_t {
  tokens,   // one row for each token of the batch
  outputs,  // one row for each position whose logits are wanted
  routed,   // Program::experts_per_token rows for each token of the batch (ops.h, ExpertRoute)
  one,      // one row, whatever the batch
};

// Element (r, c) lies at offset + r * stride + c, counted in elements from the buffer's start.
struct Tensor {
  std::int32_t buffer = -1;
  DType dtype = DType::f32;
  Rows rows = Rows::tokens;
  std::int64_t cols = 0, offset = 0, stride = 0;

  bool operator==(const Tensor&) const = default;
  bool valid() const { return buffer >= 0; }
  // Columns [first, first + count) of every row.
  Tensor slice(std::int64_t first, std::int64_t count) const {
    Tensor t = *this;
    t.offset += first;
    t.cols = count;
    return t;
  }
};

}  // namespace nibble
