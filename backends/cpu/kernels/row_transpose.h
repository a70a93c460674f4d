// row_transpose.h: sixteen rows of a row-major matrix to vectors over the rows, 32 bits of each at a time.
//   quarter   16 bytes of each row, anywhere in memory: d[i] holds in lane r the i-th 32-bit word of row r
//   put_...   such a vector in the order in which a panel's image holds its elements (packed_weight.h)
#pragma once

#include "backends/cpu/kernels/panel_decode.h"

namespace nibble::cpu::NIBBLE_ISA {

#if defined(NIBBLE_ISA_avx512)

struct U32x16 {
  __m512i v;
};

// Rows 0, 4, 8 and 12, one in each quarter of the vector: what is left to do stays inside of quarters.
NIBBLE_INLINE __m512i every_fourth_row(const std::uint8_t* p, std::int64_t stride) {
  const auto row = [&](int r) __attribute__((always_inline)) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + r * stride));
  };
  __m512i v = _mm512_zextsi128_si512(row(0));
  v = _mm512_maskz_inserti32x4(kAllLanes, v, row(4), 1);
  v = _mm512_maskz_inserti32x4(kAllLanes, v, row(8), 2);
  return _mm512_maskz_inserti32x4(kAllLanes, v, row(12), 3);
}

NIBBLE_INLINE void quarter(const std::uint8_t* p, std::int64_t stride, U32x16 (&d)[4]) {
  const __m512i x0 = every_fourth_row(p, stride), x1 = every_fourth_row(p + stride, stride),
                x2 = every_fourth_row(p + 2 * stride, stride), x3 = every_fourth_row(p + 3 * stride, stride);
  const __m512i lo0 = _mm512_maskz_unpacklo_epi32(kAllLanes, x0, x1), lo2 = _mm512_maskz_unpacklo_epi32(kAllLanes, x2, x3),
                hi0 = _mm512_maskz_unpackhi_epi32(kAllLanes, x0, x1), hi2 = _mm512_maskz_unpackhi_epi32(kAllLanes, x2, x3);
  d[0].v = _mm512_maskz_unpacklo_epi64(0xFF, lo0, lo2);
  d[1].v = _mm512_maskz_unpackhi_epi64(0xFF, lo0, lo2);
  d[2].v = _mm512_maskz_unpacklo_epi64(0xFF, hi0, hi2);
  d[3].v = _mm512_maskz_unpackhi_epi64(0xFF, hi0, hi2);
}

NIBBLE_INLINE void put_words(std::uint8_t* out, U32x16 d) { _mm512_storeu_si512(out, d.v); }
NIBBLE_INLINE void put_halves(std::uint8_t* out, U32x16 d) {
  auto* const to = reinterpret_cast<__m256i*>(out);
  _mm256_storeu_si256(to, _mm512_maskz_cvtepi32_epi16(kAllLanes, d.v));
  _mm256_storeu_si256(to + 1, _mm512_maskz_cvtepi32_epi16(kAllLanes, _mm512_maskz_srli_epi32(kAllLanes, d.v, 16)));
}
NIBBLE_INLINE void put_bytes(std::uint8_t* out, U32x16 d) {
  auto* const to = reinterpret_cast<__m128i*>(out);
  for (unsigned j = 0; j < 4; ++j) {
    const __m512i v = _mm512_maskz_srli_epi32(kAllLanes, d.v, 8 * j);
    _mm_storeu_si128(to + j, _mm512_maskz_cvtepi32_epi8(kAllLanes, v));
  }
}

// Two chunks of NVFP4: a row's four codes at the bottom of its lane, other bits above.
constexpr int kRowChunkBytes = 64;
NIBBLE_INLINE void put_codes(std::uint8_t* out, U32x16 d) {
  _mm512_storeu_si512(out, d.v);
  _mm512_storeu_si512(out + kRowChunkBytes, _mm512_maskz_srli_epi32(kAllLanes, d.v, 16));
}
NIBBLE_INLINE void row_chunk(const std::uint8_t* q, F32x16 scale, F32x16* w) {
  nvfp4_steps(_mm512_loadu_si512(q), scale, w);
}

#elif defined(NIBBLE_ISA_avx2)

struct U32x16 {
  __m256i a, b;  // rows 0 to 7, 8 to 15
};

NIBBLE_INLINE void eight_rows(const std::uint8_t* p, std::int64_t stride, __m256i (&d)[4]) {
  const auto pair = [&](int r) __attribute__((always_inline)) {  // rows r and r + 4, one in each half
    const auto* const low = reinterpret_cast<const __m128i*>(p + r * stride);
    const auto* const high = reinterpret_cast<const __m128i*>(p + (r + 4) * stride);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)), _mm_loadu_si128(high), 1);
  };
  const __m256i x0 = pair(0), x1 = pair(1), x2 = pair(2), x3 = pair(3);
  const __m256i lo0 = _mm256_unpacklo_epi32(x0, x1), lo2 = _mm256_unpacklo_epi32(x2, x3),
                hi0 = _mm256_unpackhi_epi32(x0, x1), hi2 = _mm256_unpackhi_epi32(x2, x3);
  d[0] = _mm256_unpacklo_epi64(lo0, lo2);
  d[1] = _mm256_unpackhi_epi64(lo0, lo2);
  d[2] = _mm256_unpacklo_epi64(hi0, hi2);
  d[3] = _mm256_unpackhi_epi64(hi0, hi2);
}
NIBBLE_INLINE void quarter(const std::uint8_t* p, std::int64_t stride, U32x16 (&d)[4]) {
  __m256i low[4], high[4];
  eight_rows(p, stride, low);
  eight_rows(p + 8 * stride, stride, high);
  for (int i = 0; i < 4; ++i) d[i] = {low[i], high[i]};
}

NIBBLE_INLINE void put_words(std::uint8_t* out, U32x16 d) {
  auto* const to = reinterpret_cast<__m256i*>(out);
  _mm256_storeu_si256(to, d.a);
  _mm256_storeu_si256(to + 1, d.b);
}
// The low halves of sixteen words, which are zero above.
NIBBLE_INLINE __m256i low_halves(__m256i a, __m256i b) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xD8);
}
NIBBLE_INLINE void put_halves(std::uint8_t* out, U32x16 d) {
  auto* const to = reinterpret_cast<__m256i*>(out);
  const __m256i mask = _mm256_set1_epi32(0xFFFF);
  _mm256_storeu_si256(to, low_halves(_mm256_and_si256(d.a, mask), _mm256_and_si256(d.b, mask)));
  _mm256_storeu_si256(to + 1, low_halves(_mm256_srli_epi32(d.a, 16), _mm256_srli_epi32(d.b, 16)));
}
NIBBLE_INLINE void put_bytes(std::uint8_t* out, U32x16 d) {
  auto* const to = reinterpret_cast<__m128i*>(out);
  const __m256i mask = _mm256_set1_epi32(0xFF);
  for (int j = 0; j < 4; ++j) {
    const __m256i a = _mm256_and_si256(_mm256_srli_epi32(d.a, 8 * j), mask),
                  b = _mm256_and_si256(_mm256_srli_epi32(d.b, 8 * j), mask);
    const __m256i h = low_halves(a, b);
    _mm_storeu_si128(to + j, _mm_packus_epi16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
  }
}

constexpr int kRowChunkBytes = kNvfp4ChunkBytes;
// Words of rows r (low) and r + 8 (high) in each lane to NibbleOrder::bytes.
NIBBLE_INLINE __m256i chunk_image(__m256i words) {
  const __m256i outer = _mm256_and_si256(words, _mm256_set1_epi16(static_cast<short>(0xF00F)));
  const __m256i up = _mm256_and_si256(_mm256_slli_epi16(words, 4), _mm256_set1_epi16(0x0F00));
  const __m256i down = _mm256_and_si256(_mm256_srli_epi16(words, 4), _mm256_set1_epi16(0x00F0));
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  return _mm256_shuffle_epi8(_mm256_or_si256(outer, _mm256_or_si256(up, down)), order);
}
NIBBLE_INLINE void put_codes(std::uint8_t* out, U32x16 d) {
  auto* const to = reinterpret_cast<__m256i*>(out);
  _mm256_storeu_si256(to, chunk_image(_mm256_blend_epi16(d.a, _mm256_slli_epi32(d.b, 16), 0xAA)));
  _mm256_storeu_si256(to + 1, chunk_image(_mm256_blend_epi16(_mm256_srli_epi32(d.a, 16), d.b, 0xAA)));
}
NIBBLE_INLINE void row_chunk(const std::uint8_t* q, F32x16 scale, F32x16* w) {
  nvfp4_steps(q, NibbleOrder::bytes, scale, w);
}

#else

struct U32x16 {
  std::uint32_t v[kPanelRows];
};

NIBBLE_INLINE void quarter(const std::uint8_t* p, std::int64_t stride, U32x16 (&d)[4]) {
  for (int i = 0; i < 4; ++i) {
    for (int r = 0; r < kPanelRows; ++r) std::memcpy(&d[i].v[r], p + r * stride + 4 * i, 4);
  }
}
template <class Element>
NIBBLE_INLINE void put_parts(std::uint8_t* out, const U32x16& d) {
  constexpr int kParts = 4 / sizeof(Element);
  for (int j = 0; j < kParts; ++j) {
    for (int r = 0; r < kPanelRows; ++r) {
      const auto e = static_cast<Element>(d.v[r] >> (32 / kParts * j));
      std::memcpy(out + (j * kPanelRows + r) * static_cast<int>(sizeof e), &e, sizeof e);
    }
  }
}
NIBBLE_INLINE void put_words(std::uint8_t* out, const U32x16& d) { put_parts<std::uint32_t>(out, d); }
NIBBLE_INLINE void put_halves(std::uint8_t* out, const U32x16& d) { put_parts<std::uint16_t>(out, d); }
NIBBLE_INLINE void put_bytes(std::uint8_t* out, const U32x16& d) { put_parts<std::uint8_t>(out, d); }

constexpr int kRowChunkBytes = kNvfp4ChunkBytes;
NIBBLE_INLINE void put_codes(std::uint8_t* out, const U32x16& d) { put_halves(out, d); }
NIBBLE_INLINE void row_chunk(const std::uint8_t* q, F32x16 scale, F32x16* w) {
  nvfp4_steps(q, NibbleOrder::words, scale, w);
}

#endif

// Eight bytes of each row: to [8, 16].
NIBBLE_INLINE void eight_scales(const std::uint8_t* p, std::int64_t stride, std::uint8_t* to) {
#if defined(NIBBLE_ISA_avx2) || defined(NIBBLE_ISA_avx512)
  __m128i a[8], b[8];
  for (int r = 0; r < 8; ++r) {
    const auto* const low = reinterpret_cast<const __m128i*>(p + r * stride);
    const auto* const high = reinterpret_cast<const __m128i*>(p + (r + 8) * stride);
    a[r] = _mm_unpacklo_epi8(_mm_loadl_epi64(low), _mm_loadl_epi64(high));
  }
  // Every pass halves the distance between the rows that lie beside each other: 8, 4, 2, 1.
  const auto pass = [](const __m128i* from, __m128i* out) __attribute__((always_inline)) {
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = _mm_unpacklo_epi8(from[i], from[i + 4]);
      out[2 * i + 1] = _mm_unpackhi_epi8(from[i], from[i + 4]);
    }
  };
  pass(a, b);
  pass(b, a);
  pass(a, b);
  for (int k = 0; k < 8; ++k) _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + k, b[k]);
#else
  for (int k = 0; k < 8; ++k) {
    for (int r = 0; r < kPanelRows; ++r) to[k * kPanelRows + r] = p[r * stride + k];
  }
#endif
}

}  // namespace nibble::cpu::NIBBLE_ISA
