// program.h: a flat list of ops over planned buffers: what a backend executes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/ops/ops.h"

namespace nibble {

// Which batches a program can run. Programs of every class share the scratch arena.
struct ProgramClass {
  enum class Kind : std::uint8_t {
    decode,  // decode rows only, at most max_rows
    verify,  // verify rows only
    mixed,   // any rows
    score,   // prefill rows; every row is an output (perplexity)
  } kind = Kind::mixed;
  std::int64_t max_rows = 0, max_outputs = 0;

  bool has(Section s) const;
  std::string name() const;  // "decode(4)", "mixed(2048)"
};

struct Buffer {
  Rows rows = Rows::tokens;
  std::int64_t cols = 0;
  DType dtype = DType::f32;
  std::int64_t bytes = 0;   // at the class's maximum
  std::int64_t offset = 0;  // in the scratch arena, set by the planner
};

struct Program {
  ProgramClass cls;
  std::vector<Op> ops;
  std::vector<Buffer> buffers;
  std::int64_t scratch_bytes = 0;  // high-water mark after planning
  Tensor logits;                   // [outputs, vocab]
  std::int32_t experts_per_token = 0;  // of every ExpertRoute; 0: there is none, and no Rows::routed
  std::int64_t rows_of(Rows r) const {
    switch (r) {
      case Rows::tokens:
        return cls.max_rows;
      case Rows::outputs:
        return cls.max_outputs;
      case Rows::routed:
        return cls.max_rows * experts_per_token;
      case Rows::one:
        return 1;
    }
    return 0;
  }
};

}  // namespace nibble
