// token_counts.h: how often each token stands in each slot's sequence, for the repetition penalty.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/schedule/batch.h"
#include "core/state/state_layout.h"

namespace nibble::cpu {

class TokenCounts {
 public:
  static std::uint64_t bytes(const StateSizes& sizes);
  TokenCounts() = default;
  TokenCounts(const StateSizes& sizes, std::byte* memory);  // memory is zero

  const std::int32_t* row(std::int32_t slot) const { return counts_ + slot * vocab_; }

  // Tokens that were taken back leave, then those of the batch's rows count: `tokens`, its own with
  // references resolved. Throws Error(internal), with nothing changed, when a token is taken back
  // that is not there.
  void step(const Batch& batch, std::span<const std::int32_t> tokens);
  void step(const Batch& batch) { step(batch, batch.tokens); }

  void reset(std::int32_t slot);
  using Sparse = std::vector<std::pair<std::int32_t, std::int32_t>>;  // (token, count)
  // Without the last step's rows from `keep` on; `pending` says how many it had.
  Sparse save(std::int32_t slot, std::int32_t keep, std::int32_t pending) const;
  void load(std::int32_t slot, const Sparse& saved);

 private:
  std::int32_t* counts_ = nullptr;  // [slots, vocab]
  std::int32_t* recent_ = nullptr;  // [slots, records]: tokens of the last decode or verify step
  std::int64_t vocab_ = 0, records_ = 0;
};

}  // namespace nibble::cpu
