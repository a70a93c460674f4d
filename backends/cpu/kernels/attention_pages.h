// attention_pages.h: a page's keys and values as floats, whatever the arena keeps (KvArena).
#pragma once

#include "backends/cpu/kernels/lanes.h"
#include "backends/cpu/kernels/sequence_kernels.h"

namespace nibble::cpu::NIBBLE_ISA {

struct AttendPage {
  const float *keys, *values;
  const float *key_scales, *value_scales;  // [64], or null
};

NIBBLE_INLINE void widen_e4m3(const std::uint8_t* codes, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t code = codes[i], magnitude = code & 0x7Fu;
    const float v = num::mul(num::bit_cast<float>(magnitude << 20), 0x1p120f);
    const std::uint32_t bits = magnitude == 0x7Fu ? 0x7FC00000u : num::bit_cast<std::uint32_t>(v);
    to[i] = num::bit_cast<float>(bits | (code & 0x80u) << 24);
  }
}

// `wide`: null, or room for a page's floats where it holds codes.
NIBBLE_INLINE AttendPage attend_page(const float* page, int head_dim, float* wide) {
  const std::int64_t keys = std::int64_t{head_dim} * kTile;
  if (wide == nullptr) return {page, page + keys, nullptr, nullptr};
  const std::int64_t count = kv_page_elements(head_dim);
  widen_e4m3(reinterpret_cast<const std::uint8_t*>(page), count, wide);
  const float* const scales = page + count / static_cast<std::int64_t>(sizeof(float));
  return {wide, wide + keys, scales, scales + kTile};
}

}  // namespace nibble::cpu::NIBBLE_ISA
