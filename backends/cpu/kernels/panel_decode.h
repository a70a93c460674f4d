// panel_decode.h: one panel of a packed weight, four k-steps at a time, as the float32 operands of
// the contract (nvfp4: code * block scale; fp8: the code; else the value).
//
// A decoder is opened on a segment of a panel; chunk(c, w) gives k-steps 4c .. 4c + 3 of it,
// step(k) gives one (tails; nvfp4 never needs it: its K is a multiple of 16).
#pragma once

#include "backends/cpu/packed_weight.h"
#include "backends/cpu/simd.h"
#include "core/numerics/codecs.h"

namespace nibble::cpu::NIBBLE_ISA {

NIBBLE_INLINE const std::uint8_t* byte_ptr(const std::byte* p) {
  return reinterpret_cast<const std::uint8_t*>(p);
}

#if defined(NIBBLE_ISA_avx2) || defined(NIBBLE_ISA_avx512)

// e4m3 and f16 have the same subnormals, 2^8 apart: eleven bits shifted into an f16, times 256, are
// exact.
NIBBLE_INLINE __m256i e4m3_as_f16(__m128i codes) {
  const __m256i high = _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8);
  const __m256i bits =
      _mm256_and_si256(_mm256_srai_epi16(high, 1), _mm256_set1_epi16(static_cast<short>(0xBFFF)));
  const __m256i top = _mm256_set1_epi16(0x3F80);
  const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(bits, top), top);
  return _mm256_or_si256(bits, nan);
}

#endif

#if defined(NIBBLE_ISA_avx512)

// The unmasked forms of these intrinsics make GCC 12 warn of uninitialised values in its own
// header; with all lanes selected the masked ones are the same instructions.
constexpr __mmask16 kAllLanes = 0xFFFF;
NIBBLE_INLINE F32x16 widen_f16(__m256i h) {
  return {_mm512_maskz_cvtph_ps(kAllLanes, h)};
}
NIBBLE_INLINE __m512i widen_words(const std::uint8_t* p) {
  return _mm512_maskz_cvtepu16_epi32(kAllLanes,
                                     _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
NIBBLE_INLINE F32x16 load_bf16(const std::uint8_t* p) {
  return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAllLanes, widen_words(p), 16))};
}

#elif defined(NIBBLE_ISA_avx2)

NIBBLE_INLINE F32x16 widen_f16(__m256i h) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}
NIBBLE_INLINE F32x16 load_bf16(const std::uint8_t* p) {
  const auto half = [](const std::uint8_t* q) __attribute__((always_inline)) {
    const __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
  };
  return {half(p), half(p + 16)};
}

#endif

#if defined(NIBBLE_ISA_avx2) || defined(NIBBLE_ISA_avx512)

NIBBLE_INLINE F32x16 load_f16(const std::uint8_t* p) {
  return widen_f16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
NIBBLE_INLINE F32x16 load_e4m3(const std::uint8_t* p) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return mul(widen_f16(e4m3_as_f16(codes)), set1(256.0f));
}

#else

template <class Element, class Widen>
NIBBLE_INLINE F32x16 load_each(const std::uint8_t* p, Widen widen) {
  float v[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    Element e;
    std::memcpy(&e, p + i * sizeof(Element), sizeof e);
    v[i] = widen(e);
  }
  return load(v);
}
struct WidenBf16 {
  NIBBLE_HD float operator()(std::uint16_t h) const { return num::bf16_to_float(h); }
};
struct WidenF16 {
  NIBBLE_HD float operator()(std::uint16_t h) const { return num::f16_to_float(h); }
};
struct WidenE4m3 {
  NIBBLE_HD float operator()(std::uint8_t b) const { return num::e4m3_to_float(b); }
};
NIBBLE_INLINE F32x16 load_bf16(const std::uint8_t* p) {
  return load_each<std::uint16_t>(p, WidenBf16{});
}
NIBBLE_INLINE F32x16 load_f16(const std::uint8_t* p) {
  return load_each<std::uint16_t>(p, WidenF16{});
}
NIBBLE_INLINE F32x16 load_e4m3(const std::uint8_t* p) {
  return load_each<std::uint8_t>(p, WidenE4m3{});
}

#endif

// A chunk's codes times its scales.
#if defined(NIBBLE_ISA_avx512)

// Codes at the bottom of each row's lane; bits above them do not matter.
NIBBLE_INLINE void nvfp4_steps(__m512i rows, F32x16 scale, F32x16* w) {
  const __m512 table =
      _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6);
  for (unsigned j = 0; j < 4; ++j) {
    const __m512i index = _mm512_maskz_srli_epi32(kAllLanes, rows, 4 * j);
    w[j] = mul({_mm512_maskz_permutexvar_ps(kAllLanes, index, table)}, scale);
  }
}
NIBBLE_INLINE void nvfp4_steps(const std::uint8_t* q, NibbleOrder, F32x16 scale, F32x16* w) {
  nvfp4_steps(widen_words(q), scale, w);
}

#elif defined(NIBBLE_ISA_avx2)

// Two look-ups give the upper and lower byte of a bf16; pairs of those share a 32-bit lane.
NIBBLE_INLINE void two_nvfp4_steps(__m256i nibbles, F32x16 scale, F32x16* w) {
  const __m256i high = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, char(0x80), char(0xBF),
                    char(0xBF), char(0xBF), char(0xC0), char(0xC0), char(0xC0), char(0xC0)));
  const __m256i low = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0, char(0x80), char(0xC0), 0, 0x40, char(0x80), char(0xC0), 0, 0,
                    char(0x80), char(0xC0), 0, 0x40, char(0x80), char(0xC0)));
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
  const __m256i h = _mm256_shuffle_epi8(high, nibbles), l = _mm256_shuffle_epi8(low, nibbles);
  const __m256i even = _mm256_unpacklo_epi8(l, h), odd = _mm256_unpackhi_epi8(l, h);
  w[0] = mul({_mm256_castsi256_ps(_mm256_slli_epi32(even, 16)),
              _mm256_castsi256_ps(_mm256_and_si256(even, upper))},
             scale);
  w[1] = mul({_mm256_castsi256_ps(_mm256_slli_epi32(odd, 16)),
              _mm256_castsi256_ps(_mm256_and_si256(odd, upper))},
             scale);
}
NIBBLE_INLINE void nvfp4_steps(const std::uint8_t* q, NibbleOrder, F32x16 scale, F32x16* w) {
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q));
  const __m256i mask = _mm256_set1_epi8(15);
  two_nvfp4_steps(_mm256_and_si256(v, mask), scale, w);
  two_nvfp4_steps(_mm256_and_si256(_mm256_srli_epi16(v, 4), mask), scale, w + 2);
}

#else

NIBBLE_INLINE void nvfp4_steps(const std::uint8_t* q, NibbleOrder order, F32x16 scale, F32x16* w) {
  for (int j = 0; j < 4; ++j) {
    float v[kLanes];
    for (int r = 0; r < kLanes; ++r) {
      const int at = nibble_at(order, j, r);
      v[r] = num::e2m1_to_float(static_cast<std::uint8_t>(q[at / 2] >> (4 * (at % 2)) & 15));
    }
    w[j] = mul(load(v), scale);
  }
}

#endif

template <WeightFormat>
struct Decoder;

template <int Bytes, class Load>
struct PlainDecoder {
  const std::uint8_t* p;

  NIBBLE_INLINE void open(const PackedWeight& w, const std::byte* panel, std::int64_t k0,
                          std::int64_t) {
    static_cast<void>(w);
    p = byte_ptr(panel) + k0 * kPanelRows * Bytes;
  }
  NIBBLE_INLINE F32x16 step(std::int64_t k) const { return Load{}(p + k * kPanelRows * Bytes); }
  NIBBLE_INLINE void chunk(std::int64_t c, F32x16* w) const {
    for (int j = 0; j < 4; ++j) w[j] = step(c * 4 + j);
  }
  // The same chunk of the segment `ahead` segments later.
  NIBBLE_INLINE void prefetch(std::int64_t c, int ahead) const {
    const std::uint8_t* q = p + (c * 4 + ahead * kSegment) * kPanelRows * Bytes;
    for (int line = 0; line < (Bytes > 1 ? Bytes : 1); ++line) __builtin_prefetch(q + line * 64);
  }
};

struct LoadF32 {
  NIBBLE_INLINE F32x16 operator()(const std::uint8_t* p) const {
    return load(reinterpret_cast<const float*>(p));
  }
};
struct LoadF16 {
  NIBBLE_INLINE F32x16 operator()(const std::uint8_t* p) const { return load_f16(p); }
};
struct LoadBf16 {
  NIBBLE_INLINE F32x16 operator()(const std::uint8_t* p) const { return load_bf16(p); }
};
struct LoadE4m3 {
  NIBBLE_INLINE F32x16 operator()(const std::uint8_t* p) const { return load_e4m3(p); }
};

template <>
struct Decoder<WeightFormat::f32> : PlainDecoder<4, LoadF32> {};
template <>
struct Decoder<WeightFormat::f16> : PlainDecoder<2, LoadF16> {};
template <>
struct Decoder<WeightFormat::bf16> : PlainDecoder<2, LoadBf16> {};
template <>
struct Decoder<WeightFormat::fp8_e4m3> : PlainDecoder<1, LoadE4m3> {};

template <>
struct Decoder<WeightFormat::nvfp4> {
  const std::uint8_t* p;
  NibbleOrder order;
  alignas(64) float scales[kSegment / 16 * kPanelRows];

  NIBBLE_INLINE void open(const PackedWeight& w, const std::byte* panel, std::int64_t k0,
                          std::int64_t count) {
    p = byte_ptr(panel) + k0 / kNvfp4Group * kNvfp4GroupBytes;
    order = w.order;
    for (std::int64_t b = 0; b < count / 16; ++b) {
      store(scales + b * kPanelRows, load_e4m3(scale_codes(b)));
    }
  }
  NIBBLE_INLINE const std::uint8_t* scale_codes(std::int64_t b) const {
    return p + b / 4 * kNvfp4GroupBytes + b % 4 * kPanelRows;
  }
  NIBBLE_INLINE void prefetch(std::int64_t c, int ahead) const {
    __builtin_prefetch(codes(c) + ahead * (kSegment / kNvfp4Group * kNvfp4GroupBytes));
  }
  NIBBLE_INLINE const std::uint8_t* codes(std::int64_t c) const {
    return p + c / 16 * kNvfp4GroupBytes + 64 + c % 16 * kNvfp4ChunkBytes;
  }

  NIBBLE_INLINE void chunk(std::int64_t c, F32x16* w) const {
    nvfp4_steps(codes(c), order, load(scales + c / 4 * kPanelRows), w);
  }
  NIBBLE_INLINE F32x16 step(std::int64_t k) const {
    F32x16 w[4];
    chunk(k / 4, w);
    return w[k % 4];
  }
};

}  // namespace nibble::cpu::NIBBLE_ISA
