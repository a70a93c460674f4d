// step_block.h: the few kilobytes that a step sends to the device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cuda/step_view.h"
#include "core/schedule/batch.h"
#include "core/state/slot_cursors.h"
#include "core/state/state_layout.h"

namespace nibble::cuda {

struct StepLimits {
  std::int64_t rows = 0, outputs = 0;  // of the largest program class
  StateSizes sizes;
};

// Writes StepView and its arrays for a batch that the checker has accepted; pointers inside are
// those of `device`, which all steps use: a stream runs them one after the other. Lengths are the batch's own, so a decode step of a few sequences is a few
// hundred bytes.
class StepBlock {
 public:
  static std::uint64_t bytes(const StepLimits& limits);

  StepBlock() = default;
  StepBlock(std::byte* device, std::uint64_t bytes) : device_(device), bytes_(bytes) {}

  std::byte* device() const { return device_; }
  const StepView* view() const { return reinterpret_cast<const StepView*>(device_); }
  // `host`: as large as the device's block, pinned. Returns how many bytes of it have to be copied.
  // Throws Error(internal) when the batch needs more than was planned.
  std::uint64_t write(const Batch& batch, const SlotCursors& cursors, std::int32_t experts_per_token,
                      std::byte* host);

 private:
  std::byte* device_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace nibble::cuda
