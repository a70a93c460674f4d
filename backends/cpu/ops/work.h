// work.h: how the sequence ops find their rows and share their workspace.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>

#include "backends/cpu/parallel.h"
#include "core/schedule/batch.h"
#include "nibble/error.h"

namespace nibble::cpu {

// The range that holds a row: ranges stand in row order.
inline const Range& range_of(std::span<const Range> ranges, std::int64_t row) {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), row,
                       [](std::int64_t r, const Range& x) { return r < x.first_row; });
  return *(after - 1);
}

inline std::int64_t row_count(std::span<const Range> ranges) {
  return ranges.empty() ? 0
                        : std::int64_t{ranges.back().first_row} + ranges.back().rows -
                              ranges.front().first_row;
}

// body(item, worker) for all items; no two calls with the same worker run at once. Items are taken
// in order, so the costly ones belong first.
template <class Body>
void for_each_item(Parallel& parallel, std::int64_t items, std::int64_t workers, const Body& body) {
  std::atomic<std::int64_t> next{0};
  parallel(std::min(items, workers), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t worker = begin; worker < end; ++worker) {
      for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < items;) {
        body(i, worker);
      }
    }
  });
}

inline void check_workspace(std::span<const std::byte> workspace, std::uint64_t needed,
                            const char* who) {
  if (workspace.size() < needed || reinterpret_cast<std::uintptr_t>(workspace.data()) % 64 != 0) {
    throw Error(ErrorCode::internal, std::string("[") + who + "] expected a workspace of " +
                                         std::to_string(needed) + " bytes aligned to 64, got " +
                                         std::to_string(workspace.size()));
  }
}

}  // namespace nibble::cpu
