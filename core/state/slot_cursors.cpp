#include "core/state/slot_cursors.h"

#include <string>

#include "nibble/error.h"

namespace nibble {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::invalid_argument, "[state] " + what);
}

std::string text(std::int64_t v) { return std::to_string(v); }

}  // namespace

SlotCursors::SlotCursors(std::int32_t slots, std::int32_t records)
    : slots_(static_cast<std::size_t>(slots)), records_(records) {}

void SlotCursors::check_slot(std::int32_t slot, std::int32_t keep) const {
  if (slot < 0 || static_cast<std::size_t>(slot) >= slots_.size()) {
    refuse("expected a slot below " + text(static_cast<std::int64_t>(slots_.size())) + ", got " +
           text(slot));
  }
  if (keep < 0 || keep > pending(slot)) {
    refuse("slot " + text(slot) + ": " + text(pending(slot)) + " rows can be kept, asked to keep " +
           text(keep));
  }
}

void SlotCursors::check(std::span<const Range> ranges) const {
  for (const Range& r : ranges) {
    if (r.rows <= 0) continue;
    check_slot(r.slot, r.keep);
    if (r.section != Section::prefill && r.rows > records_) {
      refuse("slot " + text(r.slot) + ": " + text(r.rows) + " " + section_name(r.section) +
             " rows, but only " + text(records_) + " can be taken back");
    }
    if (r.position != position(r.slot, r.keep)) {
      refuse("slot " + text(r.slot) + ": its next position is " + text(position(r.slot, r.keep)) +
             ", the batch says " + text(r.position));
    }
  }
}

void SlotCursors::end_step(std::span<const Range> ranges) {
  for (const Range& r : ranges) {
    if (r.rows <= 0) continue;
    Slot& s = at(r.slot);
    s.position = r.position + r.rows;
    s.pending = 0;
    if (r.section != Section::prefill) {
      s.pending = r.rows;
      s.half = 1 - s.half;
    }
  }
}

void SlotCursors::reset(std::int32_t slot, std::int64_t position) { at(slot) = {position, 0, 0}; }

}  // namespace nibble
