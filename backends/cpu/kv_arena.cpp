#include "backends/cpu/arena_floats.h"
#include "backends/cpu/state_arena.h"
#include "core/numerics/kv_codes.h"

namespace nibble::cpu {

std::vector<KvArena::Layer> KvArena::plan(const StateLayout& layout, const StateSizes& sizes) {
  if (sizes.pages < 0) {
    throw Error(ErrorCode::invalid_argument,
                "[cpu state] expected pages >= 0, got " + std::to_string(sizes.pages));
  }
  std::vector<Layer> layers;
  for (const AttentionShape& a : layout.attention) {
    if (a.heads < 1 || a.kv_heads < 1 || a.head_dim < 1 || a.heads % a.kv_heads != 0) {
      throw Error(
          ErrorCode::unsupported,
          "[cpu state] attention: expected heads a multiple of kv heads and sizes >= 1, got " +
              std::to_string(a.heads) + " and " + std::to_string(a.kv_heads) + " heads of " +
              std::to_string(a.head_dim));
    }
    Layer l;
    l.shape = a;
    const std::int64_t padded = round_up(a.head_dim, kPanel);
    l.head_stride = layout.kv == KvFormat::operand ? block_floats({a.head_dim + padded, kTile}, "KV pages")
                                                   : block_floats({a.head_dim + padded + 8, kTile / 4}, "KV pages");
    l.page_stride = block_floats({l.head_stride, a.kv_heads}, "KV pages");
    layers.push_back(l);
  }
  return layers;
}

std::uint64_t KvArena::bytes(const StateLayout& layout, const StateSizes& sizes) {
  std::int64_t total = 0;
  for (const Layer& l : plan(layout, sizes)) {
    total = sum_floats(total, block_floats({l.page_stride, sizes.pages}, "KV pages"), "KV pages");
  }
  return static_cast<std::uint64_t>(total) * sizeof(float);
}

KvArena::KvArena(std::span<std::byte> memory, const StateLayout& layout, const StateSizes& sizes)
    : layers_(plan(layout, sizes)), pages_(sizes.pages), fp8_(layout.kv == KvFormat::fp8) {
  float* at = arena_start(memory, bytes(layout, sizes), "KV pages");
  for (Layer& l : layers_) {
    l.data = at;
    at += l.page_stride * pages_;
  }
}

float* KvArena::head(std::int32_t layer, std::int32_t kv_head) const {
  const Layer& l = layers_[static_cast<std::size_t>(layer)];
  return l.data + kv_head * l.head_stride;
}

void KvArena::check(std::span<const Range> ranges, std::span<const std::int32_t> pages) const {
  for (const Range& r : ranges) {
    if (r.rows <= 0) continue;
    const std::int64_t needed =
        r.position < 0 ? -1 : (r.position + r.rows + kPageTokens - 1) / kPageTokens;
    const std::int64_t room = static_cast<std::int64_t>(pages.size()) - r.first_page;
    if (needed < 0 || r.first_page < 0 || room < needed) {
      throw Error(ErrorCode::invalid_argument, "[cpu state] slot " + std::to_string(r.slot) +
                                                   ": rows " + std::to_string(r.position) + " to " +
                                                   std::to_string(r.position + r.rows) + " need " +
                                                   std::to_string(needed) +
                                                   " pages, the table has " + std::to_string(room));
    }
    for (const std::int32_t p :
         pages.subspan(static_cast<std::size_t>(r.first_page), static_cast<std::size_t>(needed))) {
      if (p < 0 || p >= pages_) {
        throw Error(ErrorCode::invalid_argument,
                    "[cpu state] slot " + std::to_string(r.slot) + ": expected a page below " +
                        std::to_string(pages_) + ", got " + std::to_string(p));
      }
    }
  }
}

std::vector<HostState::KvLayer> KvArena::to_host(std::span<const std::int32_t> pages,
                                                 std::int64_t positions) const {
  Range all;
  all.rows = static_cast<std::int32_t>(positions);
  check({&all, 1}, pages);
  std::vector<HostState::KvLayer> out(layers_.size());
  for (std::int32_t layer = 0; layer < layers(); ++layer) {
    HostState::KvLayer& host = out[static_cast<std::size_t>(layer)];
    const AttentionShape& a = shape(layer);
    for (std::int32_t h = 0; h < a.kv_heads; ++h) {
      for (std::int64_t p = 0; p < positions; ++p) {
        float* const page = head(layer, h) + pages[static_cast<std::size_t>(p / kPageTokens)] * page_stride(layer);
        const std::int64_t place = p % kPageTokens;
        for (std::int32_t d = 0; d < a.head_dim; ++d) {
          const std::int64_t key = key_at(a, place, d), value = value_at(a, place, d);
          host.k.push_back(fp8_ ? num::kv_value(codes(page)[key], key_scales(a, page)[place]) : page[key]);
          host.v.push_back(fp8_ ? num::kv_value(codes(page)[value], value_scales(a, page)[place]) : page[value]);
        }
      }
    }
  }
  return out;
}

}  // namespace nibble::cpu
