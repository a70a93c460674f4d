// simd_int.h: sixteen integers of 32 or 16 bits at a time, beside simd.h; AVX2 and AVX-512 only.
//
// I16x16 in AVX2 has its middle quarters exchanged (columns 0-3, 8-11, 4-7, 12-15): what packing two
// registers leaves, and what unpacking turns into columns in order.
#pragma once

#include "backends/cpu/simd.h"

#if defined(NIBBLE_ISA_avx2) || defined(NIBBLE_ISA_avx512)

namespace nibble::cpu::NIBBLE_ISA {

struct I16x16 {
  __m256i v;
};
NIBBLE_INLINE I16x16 set16(std::int32_t x) { return {_mm256_set1_epi16(static_cast<short>(x))}; }
NIBBLE_INLINE I16x16 pairs16(std::int32_t two) { return {_mm256_set1_epi32(two)}; }
NIBBLE_INLINE I16x16 load16(const std::int16_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
NIBBLE_INLINE void store16(std::int16_t* p, I16x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.v);
}
NIBBLE_INLINE I16x16 add16(I16x16 x, I16x16 y) { return {_mm256_add_epi16(x.v, y.v)}; }
NIBBLE_INLINE I16x16 add_saturated16(I16x16 x, I16x16 y) { return {_mm256_adds_epi16(x.v, y.v)}; }
NIBBLE_INLINE I16x16 max16(I16x16 x, I16x16 y) { return {_mm256_max_epi16(x.v, y.v)}; }
NIBBLE_INLINE I16x16 min_unsigned16(I16x16 x, I16x16 y) { return {_mm256_min_epu16(x.v, y.v)}; }
NIBBLE_INLINE bool any_above16(I16x16 x, std::int32_t most) {
  const __m256i above = _mm256_cmpgt_epi16(x.v, set16(most).v);
  return _mm256_testz_si256(above, above) == 0;
}
NIBBLE_INLINE bool any_below_unsigned16(I16x16 x, std::int32_t least) {
  const __m256i enough = _mm256_cmpeq_epi16(_mm256_max_epu16(x.v, set16(least).v), x.v);
  return _mm256_movemask_epi8(enough) != -1;
}

#if defined(NIBBLE_ISA_avx512)

struct I32x16 {
  __m512i v;
};
NIBBLE_INLINE I32x16 set32(std::uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
NIBBLE_INLINE I32x16 add32(I32x16 x, I32x16 y) { return {_mm512_add_epi32(x.v, y.v)}; }
NIBBLE_INLINE I32x16 sub32(I32x16 x, I32x16 y) { return {_mm512_sub_epi32(x.v, y.v)}; }
NIBBLE_INLINE I32x16 and32(I32x16 x, I32x16 y) { return {_mm512_and_si512(x.v, y.v)}; }
NIBBLE_INLINE I32x16 max32(I32x16 x, I32x16 y) { return {_mm512_max_epi32(x.v, y.v)}; }
NIBBLE_INLINE I32x16 max_unsigned32(I32x16 x, I32x16 y) { return {_mm512_max_epu32(x.v, y.v)}; }
NIBBLE_INLINE I32x16 abs32(I32x16 x) { return {_mm512_abs_epi32(x.v)}; }
NIBBLE_INLINE I32x16 bits_of(F32x16 x) { return {_mm512_castps_si512(x.v)}; }
NIBBLE_INLINE F32x16 float_of(I32x16 x) { return {_mm512_castsi512_ps(x.v)}; }
NIBBLE_INLINE I32x16 truncated(F32x16 x) { return {_mm512_cvttps_epi32(x.v)}; }
// Under TowardZero, for which these instructions need no mode.
NIBBLE_INLINE F32x16 to_float(I32x16 x) {
  return {_mm512_cvt_roundepi32_ps(x.v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)};
}
NIBBLE_INLINE I32x16 where_zero32(I32x16 x, I32x16 then, I32x16 otherwise) {
  return {_mm512_mask_mov_epi32(otherwise.v, _mm512_testn_epi32_mask(x.v, x.v), then.v)};
}
NIBBLE_INLINE bool any_above32(I32x16 x, std::uint32_t most) {
  return _mm512_cmpgt_epu32_mask(x.v, set32(most).v) != 0;
}
// Each 16 bits as the upper half of 32.
NIBBLE_INLINE I32x16 upper_halves(I16x16 x) {
  return {_mm512_slli_epi32(_mm512_cvtepu16_epi32(x.v), 16)};
}
NIBBLE_INLINE I16x16 upper_halves_of(F32x16 x) {
  return {_mm512_cvtepi32_epi16(_mm512_srli_epi32(bits_of(x).v, 16))};
}

struct TowardZero {
  TowardZero() {}
};

#else

struct I32x16 {
  __m256i a, b;
};
NIBBLE_INLINE I32x16 set32(std::uint32_t x) {
  const __m256i v = _mm256_set1_epi32(static_cast<int>(x));
  return {v, v};
}
NIBBLE_INLINE I32x16 add32(I32x16 x, I32x16 y) {
  return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
NIBBLE_INLINE I32x16 sub32(I32x16 x, I32x16 y) {
  return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
NIBBLE_INLINE I32x16 and32(I32x16 x, I32x16 y) {
  return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
}
NIBBLE_INLINE I32x16 max32(I32x16 x, I32x16 y) {
  return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)};
}
NIBBLE_INLINE I32x16 max_unsigned32(I32x16 x, I32x16 y) {
  return {_mm256_max_epu32(x.a, y.a), _mm256_max_epu32(x.b, y.b)};
}
NIBBLE_INLINE I32x16 abs32(I32x16 x) { return {_mm256_abs_epi32(x.a), _mm256_abs_epi32(x.b)}; }
NIBBLE_INLINE I32x16 bits_of(F32x16 x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
NIBBLE_INLINE F32x16 float_of(I32x16 x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
NIBBLE_INLINE I32x16 truncated(F32x16 x) { return {_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b)}; }
NIBBLE_INLINE F32x16 to_float(I32x16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
NIBBLE_INLINE I32x16 where_zero32(I32x16 x, I32x16 then, I32x16 otherwise) {
  const __m256i none = _mm256_setzero_si256();
  return {_mm256_blendv_epi8(otherwise.a, then.a, _mm256_cmpeq_epi32(x.a, none)),
          _mm256_blendv_epi8(otherwise.b, then.b, _mm256_cmpeq_epi32(x.b, none))};
}
NIBBLE_INLINE bool any_above32(I32x16 x, std::uint32_t most) {
  const I32x16 top = max_unsigned32(x, set32(most)), limit = set32(most);
  const __m256i same = _mm256_and_si256(_mm256_cmpeq_epi32(top.a, limit.a),
                                        _mm256_cmpeq_epi32(top.b, limit.b));
  return _mm256_movemask_epi8(same) != -1;
}
NIBBLE_INLINE I32x16 upper_halves(I16x16 x) {
  const __m256i none = _mm256_setzero_si256();
  return {_mm256_unpacklo_epi16(none, x.v), _mm256_unpackhi_epi16(none, x.v)};
}
NIBBLE_INLINE I16x16 upper_halves_of(F32x16 x) {
  const I32x16 bits = bits_of(x);
  return {_mm256_packus_epi32(_mm256_srli_epi32(bits.a, 16), _mm256_srli_epi32(bits.b, 16))};
}

// The rounding mode of to_float. The compiler does not know of it: what lies inside must take its
// values from memory and leave them there, so that nothing can move past the two calls.
class TowardZero {
 public:
  TowardZero() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | _MM_ROUND_TOWARD_ZERO); }
  ~TowardZero() { _mm_setcsr(saved_); }
  TowardZero(const TowardZero&) = delete;
  TowardZero& operator=(const TowardZero&) = delete;

 private:
  unsigned saved_;
};

#endif

}  // namespace nibble::cpu::NIBBLE_ISA

#endif
