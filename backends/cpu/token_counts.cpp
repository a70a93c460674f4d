#include "backends/cpu/token_counts.h"

#include <algorithm>
#include <string>

#include "backends/cpu/memory.h"
#include "nibble/error.h"

namespace nibble::cpu {
namespace {

std::uint64_t entries(const StateSizes& sizes, std::int64_t each) {
  return static_cast<std::uint64_t>(sizes.slots) * static_cast<std::uint64_t>(each);
}

std::uint64_t carve(const StateSizes& sizes, std::byte* memory, std::int32_t** counts,
                    std::int32_t** recent) {
  Carver carver(memory);
  *counts = reinterpret_cast<std::int32_t*>(carver.take(entries(sizes, sizes.vocab) * 4));
  *recent = reinterpret_cast<std::int32_t*>(carver.take(entries(sizes, sizes.records) * 4));
  return carver.used();
}

}  // namespace

std::uint64_t TokenCounts::bytes(const StateSizes& sizes) {
  std::int32_t *counts, *recent;
  return carve(sizes, nullptr, &counts, &recent);
}

TokenCounts::TokenCounts(const StateSizes& sizes, std::byte* memory)
    : vocab_(sizes.vocab), records_(sizes.records) {
  carve(sizes, memory, &counts_, &recent_);
}

void TokenCounts::step(const Batch& batch, std::span<const std::int32_t> ids) {
  for (std::size_t i = 0; i < batch.taken_back.size(); ++i) {
    const auto [slot, token] = batch.taken_back[i];
    std::int32_t& count = counts_[slot * vocab_ + token];
    if (count > 0) {
      --count;
      continue;
    }
    for (std::size_t j = 0; j < i; ++j) {
      ++counts_[batch.taken_back[j].slot * vocab_ + batch.taken_back[j].token];
    }
    throw Error(ErrorCode::internal, "[cpu] taken_back[" + std::to_string(i) + "]: token " +
                                         std::to_string(token) +
                                         " is not in the sequence of slot " + std::to_string(slot));
  }
  for (const Range& r : batch.ranges) {
    const std::int32_t* const tokens = ids.data() + r.first_row;
    std::int32_t* const counts = counts_ + r.slot * vocab_;
    for (std::int32_t i = 0; i < r.rows; ++i) ++counts[tokens[i]];
    if (r.section != Section::prefill) std::copy_n(tokens, r.rows, recent_ + r.slot * records_);
  }
}

void TokenCounts::reset(std::int32_t slot) {
  std::fill_n(counts_ + slot * vocab_, vocab_, 0);
}

TokenCounts::Sparse TokenCounts::save(std::int32_t slot, std::int32_t keep,
                                      std::int32_t pending) const {
  Sparse saved;
  const std::int32_t* const dropped = recent_ + slot * records_;
  for (std::int64_t token = 0; token < vocab_; ++token) {
    std::int32_t count = row(slot)[token];
    if (count == 0) continue;
    count -= static_cast<std::int32_t>(std::count(dropped + keep, dropped + pending, token));
    if (count > 0) saved.emplace_back(static_cast<std::int32_t>(token), count);
  }
  return saved;
}

void TokenCounts::load(std::int32_t slot, const Sparse& saved) {
  reset(slot);
  for (const auto& [token, count] : saved) counts_[slot * vocab_ + token] = count;
}

}  // namespace nibble::cpu
