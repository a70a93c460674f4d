// token_table.h: strings by id, ids by string. One block of characters and a flat hash table: a
// vocabulary of 250,000 tokens takes a few megabytes and loads in milliseconds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// Ids beyond are refused: a table indexed by id would be larger than any model's embedding.
inline constexpr std::int32_t kMaxTokenId = (1 << 22) - 1;

class TokenTable {
 public:
  // `id` is free and in [0, kMaxTokenId]; the text can be found only after `index(id)`.
  void put(std::int32_t id, std::string_view text);
  void index(std::int32_t id);

  std::int32_t find(std::string_view text) const;  // -1 if no indexed id has this text
  bool has(std::int32_t id) const {
    return id >= 0 && static_cast<std::size_t>(id) < spans_.size() && spans_[id].begin != kHole;
  }
  std::string_view at(std::int32_t id) const;  // empty for a hole
  std::size_t size() const { return spans_.size(); }

 private:
  static constexpr std::uint32_t kHole = 0xFFFFFFFF;
  struct Span {
    std::uint32_t begin = kHole, length = 0;
  };

  std::size_t slot_of(std::string_view text) const;
  void grow();

  std::string characters_;
  std::vector<Span> spans_;
  std::vector<std::int32_t> slots_;  // -1 empty; size is a power of two
  std::size_t used_ = 0;
};

}  // namespace nibble
