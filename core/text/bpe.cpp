#include "core/text/bpe.h"

#include <bit>
#include <queue>

namespace nibble {
namespace {

// Below this length a scan of all pairs beats a heap.
constexpr std::size_t kShort = 48;

std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93u;
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93u;
  return x ^ (x >> 32);
}

}  // namespace

MergeTable::MergeTable(std::size_t count) : slots_(std::bit_ceil(2 * count + 2)) {}

std::size_t MergeTable::slot_of(std::uint64_t key) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = mix(key) & mask;
  while (slots_[slot].key != key && slots_[slot].merge.rank != kNone) slot = (slot + 1) & mask;
  return slot;
}

void MergeTable::set(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t key = key_of(left, right);
  slots_[slot_of(key)] = {key, merge};
}

void Bpe::encode(std::string_view piece, std::vector<std::int32_t>& out) const {
  if (const std::int32_t id = whole_.find(piece); id >= 0) {
    out.push_back(id);
    return;
  }
  merge(piece, out);
}

void Bpe::merge(std::string_view piece, std::vector<std::int32_t>& out) const {
  const std::size_t begin = out.size();
  symbols_of(piece, out);
  if (out.size() - begin <= kShort) {
    merge_short(merges_, out, begin);
  } else {
    merge_long(merges_, out, begin);
  }
}

void Bpe::symbols_of(std::string_view piece, std::vector<std::int32_t>& out) const {
  bool after_unknown = false;
  for (const char c : piece) {
    const std::int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    if (id >= 0) {
      out.push_back(id);
    } else if (unknown_id_ >= 0 && !(fuse_unknown_ && after_unknown)) {
      out.push_back(unknown_id_);
    }
    after_unknown = id < 0;
  }
}

// Both forms take the pair of the lowest rank, the leftmost among equals, until no pair merges.
void Bpe::merge_short(const MergeTable& merges, std::vector<std::int32_t>& symbols,
                      std::size_t begin) {
  std::int32_t* const id = symbols.data() + begin;
  std::size_t n = symbols.size() - begin;
  MergeTable::Merge pair[kShort];  // pair[i]: what id[i] and id[i + 1] become
  for (std::size_t i = 0; i + 1 < n; ++i) pair[i] = merges.find(id[i], id[i + 1]);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i) {
      if (pair[i].rank < pair[best].rank) best = i;
    }
    if (pair[best].rank == MergeTable::kNone) break;
    id[best] = pair[best].id;
    --n;
    for (std::size_t i = best + 1; i < n; ++i) {
      id[i] = id[i + 1];
      pair[i - 1] = pair[i];
    }
    if (best > 0) pair[best - 1] = merges.find(id[best - 1], id[best]);
    if (best + 1 < n) pair[best] = merges.find(id[best], id[best + 1]);
  }
  symbols.resize(begin + n);
}

void Bpe::merge_long(const MergeTable& merges, std::vector<std::int32_t>& symbols,
                     std::size_t begin) {
  struct Link {
    std::int32_t id;
    std::int64_t previous, next;  // -1 at the ends
  };
  struct Candidate {
    std::uint32_t rank;
    std::size_t at;
    std::int32_t left, right;  // still there when it is its turn, or the candidate is stale
    bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  const auto n = static_cast<std::int64_t>(symbols.size() - begin);
  std::vector<Link> links(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    links[static_cast<std::size_t>(i)] = {symbols[begin + static_cast<std::size_t>(i)], i - 1,
                                          i + 1 < n ? i + 1 : -1};
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto consider = [&](std::int64_t at) {
    if (at < 0 || links[static_cast<std::size_t>(at)].next < 0) return;
    const Link& left = links[static_cast<std::size_t>(at)];
    const Link& right = links[static_cast<std::size_t>(left.next)];
    const auto found = merges.find(left.id, right.id);
    if (found.rank != MergeTable::kNone) {
      queue.push({found.rank, static_cast<std::size_t>(at), left.id, right.id});
    }
  };
  for (std::int64_t i = 0; i + 1 < n; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Link& left = links[top.at];
    if (left.id != top.left || left.next < 0) continue;
    Link& right = links[static_cast<std::size_t>(left.next)];
    if (right.id != top.right) continue;
    left.id = merges.find(top.left, top.right).id;
    left.next = right.next;
    right.id = -1;  // gone: no candidate names it any more
    if (left.next >= 0) {
      links[static_cast<std::size_t>(left.next)].previous = static_cast<std::int64_t>(top.at);
    }
    consider(left.previous);
    consider(static_cast<std::int64_t>(top.at));
  }
  std::size_t kept = begin;
  for (std::int64_t i = 0; i >= 0; i = links[static_cast<std::size_t>(i)].next) {
    symbols[kept++] = links[static_cast<std::size_t>(i)].id;
  }
  symbols.resize(kept);
}

}  // namespace nibble
