// codec_lanes.h: rounding of core/numerics/codecs.h for sixteen lanes, AVX2 and AVX-512: the same
// integer steps on each lane, so the same codes.
#pragma once

#include "backends/cpu/kernels/lanes.h"
#include "backends/cpu/kernels/simd_int.h"

#if defined(NIBBLE_ISA_avx2) || defined(NIBBLE_ISA_avx512)

namespace nibble::cpu::NIBBLE_ISA {

#if defined(NIBBLE_ISA_avx512)
template <int N>
NIBBLE_INLINE I32x16 shift_right32(I32x16 x) { return {_mm512_srli_epi32(x.v, N)}; }
NIBBLE_INLINE I32x16 or32(I32x16 x, I32x16 y) { return {_mm512_or_si512(x.v, y.v)}; }
NIBBLE_INLINE I32x16 min_unsigned32(I32x16 x, I32x16 y) { return {_mm512_min_epu32(x.v, y.v)}; }
// The low byte of each lane.
NIBBLE_INLINE void store_bytes(std::uint8_t* p, I32x16 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v));
}
// The low four bits of two lanes in each byte, the even lane below.
NIBBLE_INLINE void store_nibbles(std::uint8_t* p, I32x16 x) {
  const __m512i two = _mm512_or_si512(x.v, _mm512_srli_epi64(x.v, 28));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm512_cvtepi64_epi8(two));
}
NIBBLE_INLINE F32x16 through_f16(F32x16 x) {
  return {_mm512_cvtph_ps(_mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))};
}
#else
template <int N>
NIBBLE_INLINE I32x16 shift_right32(I32x16 x) { return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)}; }
NIBBLE_INLINE I32x16 or32(I32x16 x, I32x16 y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
NIBBLE_INLINE I32x16 min_unsigned32(I32x16 x, I32x16 y) {
  return {_mm256_min_epu32(x.a, y.a), _mm256_min_epu32(x.b, y.b)};
}
NIBBLE_INLINE __m128i low_bytes(I32x16 x) {
  const __m256i mixed = _mm256_packus_epi32(x.a, x.b);
  const __m256i words = _mm256_permute4x64_epi64(mixed, 0xD8);
  return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
NIBBLE_INLINE void store_bytes(std::uint8_t* p, I32x16 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), low_bytes(x));
}
NIBBLE_INLINE void store_nibbles(std::uint8_t* p, I32x16 x) {
  const __m128i two = _mm_maddubs_epi16(low_bytes(x), _mm_set1_epi16(0x1001));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(two, two));
}
NIBBLE_INLINE F32x16 through_f16(F32x16 x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_cvtph_ps(_mm256_cvtps_ph(x.a, kNearest)), _mm256_cvtph_ps(_mm256_cvtps_ph(x.b, kNearest))};
}
#endif

// x to `kept` fewer bits, as an integer whose last bit is the last kept one: half to even.
template <int Dropped>
NIBBLE_INLINE I32x16 rounded_bits(I32x16 x) {
  const I32x16 last = and32(shift_right32<Dropped>(x), set32(1));
  return shift_right32<Dropped>(add32(x, add32(last, set32((1u << (Dropped - 1)) - 1))));
}

// Codes in the low byte of each lane.
NIBBLE_INLINE I32x16 to_e4m3(F32x16 x) {
  const F32x16 a = abs(x);
  const I32x16 sign = and32(shift_right32<24>(bits_of(x)), set32(0x80));
  const I32x16 small = sub32(bits_of(add(a, set1(16384.0f))), set32(0x46800000));  // below 2^-6
  const I32x16 normal = sub32(rounded_bits<20>(bits_of(a)), set32(120 << 3));
  const F32x16 finite = where_less(a, set1(0x1p-6f), float_of(small), float_of(normal));
  const F32x16 code = where_less(a, set1(448.0f), finite, float_of(set32(0x7E)));
  return bits_of(where_nan(x, float_of(set32(0x7F)), float_of(or32(bits_of(code), sign))));
}
NIBBLE_INLINE I32x16 to_e2m1(F32x16 x) {
  const F32x16 a = abs(x);
  const I32x16 sign = and32(shift_right32<28>(bits_of(x)), set32(8));
  const I32x16 small = sub32(bits_of(add(a, set1(0x1p22f))), set32(0x4A800000));  // below 1
  const I32x16 normal = sub32(rounded_bits<22>(bits_of(a)), set32(126 << 1));
  const I32x16 code = min_unsigned32(bits_of(where_less(a, set1(1.0f), float_of(small), float_of(normal))), set32(7));
  return bits_of(where_nan(x, zero(), float_of(or32(code, sign))));
}
NIBBLE_INLINE F32x16 through_bf16(F32x16 x) {
  const I32x16 bits = bits_of(x), upper = set32(0xFFFF0000u);
  const I32x16 last = and32(shift_right32<16>(bits), set32(1));
  const I32x16 rounded = and32(add32(bits, add32(last, set32(0x7FFF))), upper);
  return where_nan(x, float_of(or32(and32(bits, upper), set32(0x00400000))), float_of(rounded));
}

}  // namespace nibble::cpu::NIBBLE_ISA

#endif
