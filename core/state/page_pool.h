// page_pool.h: the KV pages that all sequences of a model share.
#pragma once

#include <cstdint>
#include <vector>

#include "core/state/state_layout.h"

namespace nibble {

inline std::int64_t pages_for(std::int64_t positions) {
  return (positions + kPageTokens - 1) / kPageTokens;
}

class PagePool {
 public:
  explicit PagePool(std::int64_t pages) {
    free_.reserve(static_cast<std::size_t>(pages));
    for (std::int64_t p = pages; p-- > 0;) free_.push_back(static_cast<std::int32_t>(p));
  }

  std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }

  // Makes `table` cover `positions`. False, with nothing changed, if the pool has too few pages.
  bool grow(std::vector<std::int32_t>& table, std::int64_t positions) {
    const std::int64_t more = pages_for(positions) - static_cast<std::int64_t>(table.size());
    if (more > free_pages()) return false;
    for (std::int64_t i = 0; i < more; ++i) {
      table.push_back(free_.back());
      free_.pop_back();
    }
    return true;
  }

  // Gives back what lies beyond `positions`.
  void shrink(std::vector<std::int32_t>& table, std::int64_t positions) {
    while (static_cast<std::int64_t>(table.size()) > pages_for(positions)) {
      free_.push_back(table.back());
      table.pop_back();
    }
  }

 private:
  std::vector<std::int32_t> free_;
};

}  // namespace nibble
