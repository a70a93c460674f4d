// slot_cursors.h: where each sequence slot stands: how many rows it has, and how many of the last ones
// can still be taken back. One cursor serves all recurrent layers; it moves once a step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/schedule/batch.h"

namespace nibble {

class SlotCursors {
 public:
  SlotCursors() = default;
  SlotCursors(std::int32_t slots, std::int32_t records);

  std::int32_t records() const { return records_; }
  // Rows of the last step that are recorded, not folded into the state.
  std::int32_t pending(std::int32_t slot) const { return at(slot).pending; }
  // Which half of the record ring holds them (0 or 1); a step fills the other.
  std::int32_t half(std::int32_t slot) const { return at(slot).half; }
  // Of the next row, if `keep` pending records are accepted.
  std::int64_t position(std::int32_t slot, std::int32_t keep) const {
    return at(slot).position - at(slot).pending + keep;
  }

  // Both throw Error(invalid_argument): for a slot or a number of records that is not there, for a
  // range that the state cannot take.
  void check_slot(std::int32_t slot, std::int32_t keep) const;
  void check(std::span<const Range> ranges) const;
  // After all layers of a step have run.
  void end_step(std::span<const Range> ranges);

  void reset(std::int32_t slot, std::int64_t position = 0);

 private:
  struct Slot {
    std::int64_t position = 0;  // after all pending rows
    std::int32_t pending = 0, half = 0;
  };
  const Slot& at(std::int32_t slot) const { return slots_[static_cast<std::size_t>(slot)]; }
  Slot& at(std::int32_t slot) { return slots_[static_cast<std::size_t>(slot)]; }

  std::vector<Slot> slots_;
  std::int32_t records_ = 0;
};

}  // namespace nibble
