#include "core/text/token_table.h"

#include <functional>
#include <utility>

#include "nibble/error.h"

namespace nibble {

void TokenTable::put(std::int32_t id, std::string_view text) {
  if (characters_.size() + text.size() >= kHole) {
    throw Error(ErrorCode::unsupported, "[tokenizer] more than 4 GB of token text");
  }
  const auto at = static_cast<std::size_t>(id);
  if (at >= spans_.size()) spans_.resize(at + 1);
  spans_[at] = {static_cast<std::uint32_t>(characters_.size()),
                static_cast<std::uint32_t>(text.size())};
  characters_.append(text);
}

void TokenTable::index(std::int32_t id) {
  if (2 * (used_ + 1) > slots_.size()) grow();
  slots_[slot_of(at(id))] = id;
  ++used_;
}

std::int32_t TokenTable::find(std::string_view text) const {
  return slots_.empty() ? -1 : slots_[slot_of(text)];
}

std::string_view TokenTable::at(std::int32_t id) const {
  if (!has(id)) return {};
  return std::string_view(characters_).substr(spans_[id].begin, spans_[id].length);
}

std::size_t TokenTable::slot_of(std::string_view text) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = std::hash<std::string_view>()(text) & mask;
  while (slots_[slot] >= 0 && at(slots_[slot]) != text) slot = (slot + 1) & mask;
  return slot;
}

void TokenTable::grow() {
  const std::vector<std::int32_t> old = std::exchange(
      slots_, std::vector<std::int32_t>(slots_.empty() ? 1024 : 2 * slots_.size(), -1));
  for (const std::int32_t id : old) {
    if (id >= 0) slots_[slot_of(at(id))] = id;
  }
}

}  // namespace nibble
