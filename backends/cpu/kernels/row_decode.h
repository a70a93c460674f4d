// row_decode.h: what panel_decode.h does, for a weight that lies row by row as its file holds it (Layout::rows).
//
// RowDecoder opens, decodes and prefetches as Decoder does and gives the same operands. Opening turns a segment of
// sixteen rows into a panel's order, in the first-level cache. Nothing outside of the weight's own bytes is read: rows
// and columns that it lacks are zeros, as in an image. Bytes may be unaligned.
#pragma once

#include "backends/cpu/kernels/row_transpose.h"

namespace nibble::cpu::NIBBLE_ISA {

// Where a panel's rows are.
struct PanelRows {
  const std::uint8_t* p;
  std::int64_t stride, rows, left;  // left: columns from the segment's first on

  NIBBLE_INLINE PanelRows(const PackedWeight& w, const std::byte* panel, std::int64_t k0)
      : p(byte_ptr(panel)), stride(w.panel_bytes / kPanelRows), rows(kPanelRows), left(w.cols - k0) {
    const std::int64_t behind = w.codes + w.rows * stride - panel;
    if (behind < w.panel_bytes) rows = behind / stride;
  }
  NIBBLE_INLINE bool whole(std::int64_t count) const {
    return rows == kPanelRows && count == kSegment && count <= left;
  }
};

// `bytes` of each of `rows` rows, zeros behind them and in the rows of a panel that are missing: [16, padded].
inline void copy_rows(const std::uint8_t* from, std::int64_t stride, std::int64_t rows, std::int64_t bytes,
                      std::int64_t padded, std::uint8_t* to) {
  std::memset(to, 0, static_cast<std::size_t>(padded * kPanelRows));
  for (std::int64_t r = 0; r < rows; ++r) {
    std::memcpy(to + r * padded, from + r * stride, static_cast<std::size_t>(bytes));
  }
}

// Behind a row's end the next sixteen rows are wanted, not the next row.
NIBBLE_INLINE std::int64_t rows_to_skip(std::int64_t ahead, std::int64_t left) {
  return ahead * kSegment < left ? 0 : kPanelRows - 1;
}

template <WeightFormat>
struct RowDecoder;

template <int Bytes, class Load>
struct PlainRowDecoder {
  alignas(64) std::uint8_t image[kSegment * kPanelRows * Bytes];
  const std::uint8_t* p;
  std::int64_t stride, left;

  NIBBLE_INLINE void open(const PackedWeight& w, const std::byte* panel, std::int64_t k0, std::int64_t count) {
    const PanelRows from(w, panel, k0);
    p = from.p + k0 * Bytes;
    stride = from.stride;
    left = from.left;
    if (from.whole(count)) {
      fill(p, stride, kSegment * Bytes / 16);
    } else {
      open_part(from.rows, count < left ? count : left);
    }
  }
  NIBBLE_INLINE F32x16 step(std::int64_t k) const { return Load{}(image + k * kPanelRows * Bytes); }
  NIBBLE_INLINE void chunk(std::int64_t c, F32x16* w) const {
    for (int j = 0; j < 4; ++j) w[j] = step(c * 4 + j);
  }
  // The same chunk's share of the segment `ahead` segments later: half a row. Where rows are not aligned to lines,
  // the line that a segment begins in came with the one before: what its lines end in is asked for.
  NIBBLE_INLINE void prefetch(std::int64_t c, int ahead) const {
    const std::uint8_t* q = p + ahead * kSegment * Bytes + (c / 2 + rows_to_skip(ahead, left)) * stride;
    for (int line = 0; line < Bytes; ++line) __builtin_prefetch(q + (c % 2 * Bytes + line) * 64 + 63);
  }

 private:
  __attribute__((noinline)) void open_part(std::int64_t rows, std::int64_t count) {
    alignas(64) std::uint8_t part[kSegment * kPanelRows * Bytes];
    const std::int64_t padded = (count * Bytes + 15) / 16 * 16;
    copy_rows(p, stride, rows, count * Bytes, padded, part);
    fill(part, padded, padded / 16);
  }
  NIBBLE_INLINE void fill(const std::uint8_t* from, std::int64_t step_bytes, std::int64_t quarters) {
    for (std::int64_t q = 0; q < quarters; ++q) {
      U32x16 d[4];
      quarter(from + q * 16, step_bytes, d);
      for (int i = 0; i < 4; ++i) {
        std::uint8_t* const to = image + (q * 4 + i) * 64;
        if constexpr (Bytes == 4) put_words(to, d[i]);
        if constexpr (Bytes == 2) put_halves(to, d[i]);
        if constexpr (Bytes == 1) put_bytes(to, d[i]);
      }
    }
  }
};

template <>
struct RowDecoder<WeightFormat::f32> : PlainRowDecoder<4, LoadF32> {};
template <>
struct RowDecoder<WeightFormat::f16> : PlainRowDecoder<2, LoadF16> {};
template <>
struct RowDecoder<WeightFormat::bf16> : PlainRowDecoder<2, LoadBf16> {};
template <>
struct RowDecoder<WeightFormat::fp8_e4m3> : PlainRowDecoder<1, LoadE4m3> {};

template <>
struct RowDecoder<WeightFormat::nvfp4> {
  static constexpr std::int64_t kCodes = kSegment / 2, kBlocks = kSegment / 16;  // bytes of a row's segment

  alignas(64) std::uint8_t chunks[kSegment / 4 * kRowChunkBytes];
  alignas(64) std::uint8_t scale_image[kBlocks * kPanelRows];
  alignas(64) float scales[kBlocks * kPanelRows];
  const std::uint8_t *p, *s;
  std::int64_t stride, left;

  NIBBLE_INLINE void open(const PackedWeight& w, const std::byte* panel, std::int64_t k0, std::int64_t count) {
    const PanelRows from(w, panel, k0);
    p = from.p + k0 / 2;
    s = byte_ptr(w.block_scales) + (panel - w.codes) / 8 + k0 / 16;  // a row has an eighth of its code bytes
    stride = from.stride;
    left = from.left;
    if (from.whole(count)) {
      fill(p, stride, s, stride / 8);
    } else {
      open_part(from.rows, count < left ? count : left);
    }
  }
  NIBBLE_INLINE const std::uint8_t* scale_codes(std::int64_t b) const { return scale_image + b * kPanelRows; }
  NIBBLE_INLINE void chunk(std::int64_t c, F32x16* w) const {
    row_chunk(chunks + c * kRowChunkBytes, load(scales + c / 4 * kPanelRows), w);
  }
  NIBBLE_INLINE F32x16 step(std::int64_t k) const {
    F32x16 w[4];
    chunk(k / 4, w);
    return w[k % 4];
  }
  // A row's codes with each of the first sixteen chunks, its scales with the others.
  NIBBLE_INLINE void prefetch(std::int64_t c, int ahead) const {
    const std::int64_t row = c % kPanelRows + rows_to_skip(ahead, left);
    __builtin_prefetch(c < kPanelRows ? p + (ahead + 1) * kCodes - 1 + row * stride
                                      : s + (ahead + 1) * kBlocks - 1 + row * (stride / 8));
  }

 private:
  __attribute__((noinline)) void open_part(std::int64_t rows, std::int64_t count) {
    alignas(64) std::uint8_t codes[kCodes * kPanelRows], bytes[kBlocks * kPanelRows];
    copy_rows(p, stride, rows, count / 2, kCodes, codes);
    copy_rows(s, stride / 8, rows, count / 16, kBlocks, bytes);
    fill(codes, kCodes, bytes, kBlocks);
  }
  NIBBLE_INLINE void fill(const std::uint8_t* codes, std::int64_t code_stride, const std::uint8_t* bytes,
                          std::int64_t byte_stride) {
    eight_scales(bytes, byte_stride, scale_image);
    for (int b = 0; b < kBlocks; ++b) store(scales + b * kPanelRows, load_e4m3(scale_codes(b)));
    for (int q = 0; q < kCodes / 16; ++q) {
      U32x16 d[4];
      quarter(codes + q * 16, code_stride, d);
      for (int i = 0; i < 4; ++i) put_codes(chunks + (q * 4 + i) * 2 * kRowChunkBytes, d[i]);
    }
  }
};

}  // namespace nibble::cpu::NIBBLE_ISA
