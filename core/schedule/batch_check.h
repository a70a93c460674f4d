// batch_check.h: refuses a batch that does not fit its program before any state is touched.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/program/program.h"
#include "core/schedule/batch.h"
#include "core/state/slot_cursors.h"
#include "core/state/state_layout.h"

namespace nibble {

// What of a program limits its batches.
struct ProgramLimits {
  ProgramClass cls;
  std::string name;        // for errors
  bool attention = false;  // pages are needed
  bool samples = false, scores = false;
  std::int64_t positions = std::int64_t{1} << 31;  // rows of the shortest rope table
};

class BatchChecker {
 public:
  BatchChecker() = default;
  explicit BatchChecker(const StateSizes& sizes);
  static std::uint64_t bytes(const StateSizes& sizes);

  // `recurrent`: the model has layers that insist on the next position. `sampled`: tokens that the step started just
  // before samples, which this batch may refer to.
  // Throws Error(invalid_argument) for what a caller may have brought in (tokens, sampling) and
  // Error(internal) for what only a wrong schedule makes. Allocates nothing unless it throws.
  void operator()(const ProgramLimits& program, const Batch& batch, const SlotCursors& state,
                  bool recurrent, std::int64_t sampled = 0);

 private:
  void check_tokens(const ProgramLimits& program, const Batch& batch, std::int64_t sampled) const;
  void check_ranges(const ProgramLimits& program, const Batch& batch, const SlotCursors& state);
  void check_pages(const ProgramLimits& program, const Batch& batch, const Range& range);
  void check_outputs(const ProgramLimits& program, const Batch& batch) const;

  StateSizes sizes_;
  std::uint32_t round_ = 0;                  // marks of earlier batches are stale, not cleared
  std::vector<std::uint32_t> slot_seen_;     // [slots]
  std::vector<std::uint32_t> page_written_;  // [pages]
};

}  // namespace nibble
