// bpe.h: byte pair encoding over bytes: the vocabulary and the ranked merges.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/text/token_table.h"

namespace nibble {

// Ranks of merges by the pair of ids; flat and open-addressed, most look-ups miss.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank = kNone;
    std::int32_t id = -1;
  };
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;

  explicit MergeTable(std::size_t count = 0);
  void set(std::int32_t left, std::int32_t right, Merge merge);  // a later one replaces
  Merge find(std::int32_t left, std::int32_t right) const {
    return slots_[slot_of(key_of(left, right))].merge;
  }

 private:
  struct Slot {
    std::uint64_t key = ~std::uint64_t{0};
    Merge merge;
  };
  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
           static_cast<std::uint32_t>(right);
  }
  std::size_t slot_of(std::uint64_t key) const;

  std::vector<Slot> slots_;
};

class Bpe {
 public:
  explicit Bpe(const JsonView& model);  // throws Error(bad_file | unsupported)

  // Appends the ids of one piece of raw bytes. O(n log n) in its length.
  void encode(std::string_view piece, std::vector<std::int32_t>& out) const;

  // The vocabulary as in the file; encoding does not need it.
  TokenTable take_tokens() { return std::move(tokens_); }

 private:
  void read_vocab(const JsonView& model);
  void read_merges(const JsonView& model);
  void read_bytes(const JsonView& model);
  void index_whole_tokens();
  void symbols_of(std::string_view piece, std::vector<std::int32_t>& out) const;
  static void merge_short(const MergeTable& merges, std::vector<std::int32_t>& symbols,
                          std::size_t begin);
  static void merge_long(const MergeTable& merges, std::vector<std::int32_t>& symbols,
                         std::size_t begin);
  void merge(std::string_view piece, std::vector<std::int32_t>& out) const;

  TokenTable tokens_;
  TokenTable whole_;  // raw bytes of tokens that a piece of just these bytes becomes at once
  MergeTable merges_;
  std::array<std::int32_t, 256> byte_ids_{};
  std::int32_t unknown_id_ = -1;  // for bytes without a token; -1: they are dropped
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;
};

}  // namespace nibble
