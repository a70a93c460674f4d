#include "core/checkpoint/gguf_decode.h"

#include <cstring>
#include <memory>
#include <new>

#include "core/checkpoint/finite.h"
#include "core/checkpoint/widen.h"
#include "nibble/error.h"

namespace nibble {
namespace {

struct Made {
  std::unique_ptr<std::byte[]> codes, scales;
};

std::unique_ptr<std::byte[]> room(std::uint64_t size, const Weight& w) {
  try {
    return std::make_unique_for_overwrite<std::byte[]>(size);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::out_of_memory, "[gguf] " + w.codes_origin + ": " + std::to_string(size) +
                                              " bytes for its decoded values do not fit in memory");
  }
}

// 16 elements: byte j of `group` holds element j (low) and j + 8 (high); ours hold neighbours.
std::uint64_t neighbours(std::uint64_t group) {
  constexpr std::uint64_t kLow = 0x0f0f0f0f0f0f0f0fu;
  const auto pairs = [](std::uint64_t v) {  // eight nibbles, one a byte, into four bytes
    v = (v | v >> 4) & 0x00ff00ff00ff00ffu;
    v = (v | v >> 8) & 0x0000ffff0000ffffu;
    return (v | v >> 16) & 0xffffffffu;
  };
  return pairs(group & kLow) | pairs(group >> 4 & kLow) << 32;
}

void row_of_nvfp4(const std::byte* from, std::int64_t cols, std::byte* codes, std::byte* scales) {
  for (std::int64_t k = 0; k < cols; k += 64) {
    unpack_nvfp4_block(from, codes, scales);
    from += 36;
    codes += 32;
    scales += 4;
  }
}

void row_of_q8_0(const std::byte* from, std::int64_t cols, std::byte* to) {
  for (std::int64_t k = 0; k < cols; k += 32) {
    std::uint16_t bits;
    std::memcpy(&bits, from, 2);
    const float scale = widen_f16(bits);
    float values[32];
    for (int i = 0; i < 32; ++i) {
      values[i] =
          scale * static_cast<float>(static_cast<std::int8_t>(from[2 + i]));  // 18 bits: exact
    }
    std::memcpy(to, values, sizeof values);
    from += 34;
    to += sizeof values;
  }
}

// `bits` of one column; a head's columns fill whole bytes.
void move_columns(const GgufHeads& heads, const std::byte* from, std::int64_t cols,
                  std::int64_t bits, std::byte* to) {
  const auto bytes = [&](std::int64_t columns) {
    return static_cast<std::size_t>(columns * bits / 8);
  };
  std::memcpy(to, from, bytes(heads.first));
  for (std::int64_t at = heads.first; at < cols; at += heads.unit) {
    std::memcpy(to + bytes(at), from + bytes(heads.stored(at)), bytes(heads.unit));
  }
}

}  // namespace

void unpack_nvfp4_block(const std::byte* block, std::byte* codes, std::byte* scales) {
  std::memcpy(scales, block, 4);
  for (int g = 0; g < 4; ++g) {
    std::uint64_t group;
    std::memcpy(&group, block + 4 + 8 * g, 8);
    group = neighbours(group);
    std::memcpy(codes + 8 * g, &group, 8);
  }
}

void decode_gguf_matrix(const GgufTensor& t, const GgufHeads& heads, Weight& w) {
  const bool fp4 = w.format == WeightFormat::nvfp4,
             columns = heads.axis == GgufHeads::Axis::columns;
  const std::int64_t bits = fp4 ? 4 : w.format == WeightFormat::f32 ? 32 : 16;
  const auto row = static_cast<std::size_t>(w.cols * bits / 8),
             scale_row = static_cast<std::size_t>(w.cols / 16);
  const auto rows = static_cast<std::size_t>(w.rows);
  auto made = std::make_shared<Made>();
  made->codes = room(rows * row, w);
  if (fp4) made->scales = room(rows * scale_row, w);
  const auto spare = columns ? room(row + scale_row, w) : nullptr;
  const std::size_t stride = t.bytes.size() / rows;
  for (std::int64_t n = 0; n < w.rows; ++n) {
    const bool moved = heads.axis == GgufHeads::Axis::rows && n >= heads.first;
    const std::byte* from =
        t.bytes.data() + static_cast<std::size_t>(moved ? heads.stored(n) : n) * stride;
    const auto at = static_cast<std::size_t>(n);
    std::byte* const codes = made->codes.get() + at * row;
    std::byte* const scales = fp4 ? made->scales.get() + at * scale_row : nullptr;
    std::byte* const to = columns ? spare.get() : codes;
    std::byte* const to_scales = columns ? spare.get() + row : scales;
    if (fp4) {
      row_of_nvfp4(from, w.cols, to, to_scales);
    } else if (t.type->id == gguf::kQ8_0) {
      row_of_q8_0(from, w.cols, to);
    } else {
      std::memcpy(to, from, row);
    }
    if (!columns) continue;
    move_columns(heads, to, w.cols, bits, codes);
    if (!fp4) continue;
    GgufHeads groups = heads;
    groups.first /= 16;
    groups.unit /= 16;
    move_columns(groups, to_scales, w.cols / 16, 8, scales);
  }
  w.codes = {made->codes.get(), rows * row};
  if (fp4) w.block_scales = {made->scales.get(), rows * scale_row};
  w.owner = std::move(made);
  check_finite(w);
}

}  // namespace nibble
