// simd.h: sixteen floats at a time, for files in kernels/ only.
//
// Every operation is the IEEE one on each lane, so all instruction sets give the same bits; there is
// no horizontal sum but `fold`, the end of the tree of core/numerics/reduce.h. max is num::max, a > b ?
// a : b; `largest` takes it in an order of its own, which only NaN and the sign of zero can feel;
// where_less chooses by a comparison in which NaN is not less.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/numerics/scalar.h"

#if defined(NIBBLE_ISA_avx2) || defined(NIBBLE_ISA_avx512)
#include <immintrin.h>
#endif
#if defined(NIBBLE_ISA_neon)
#include <arm_neon.h>
#endif

// Each set's functions are in a namespace of its own, so this is for speed only; with a sanitizer's checks around each
// of them, compilers would take minutes for a file.
#if defined(__SANITIZE_ADDRESS__)
#define NIBBLE_INLINE inline
#else
#define NIBBLE_INLINE inline __attribute__((always_inline))
#endif

namespace nibble::cpu::NIBBLE_ISA {

constexpr int kLanes = 16;

#if defined(NIBBLE_ISA_avx512)

struct F32x16 {
  __m512 v;
};
NIBBLE_INLINE F32x16 zero() { return {_mm512_setzero_ps()}; }
NIBBLE_INLINE F32x16 set1(float x) { return {_mm512_set1_ps(x)}; }
NIBBLE_INLINE F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
NIBBLE_INLINE void store(float* p, F32x16 a) { _mm512_storeu_ps(p, a.v); }
NIBBLE_INLINE F32x16 add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
NIBBLE_INLINE F32x16 sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
NIBBLE_INLINE F32x16 mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
NIBBLE_INLINE F32x16 div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
NIBBLE_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
NIBBLE_INLINE F32x16 negative(F32x16 a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
NIBBLE_INLINE F32x16 abs(F32x16 a) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0f), a.v)}; }
NIBBLE_INLINE F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
NIBBLE_INLINE F32x16 where_less(F32x16 a, F32x16 b, F32x16 then, F32x16 otherwise) {
  return {_mm512_mask_mov_ps(otherwise.v, _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), then.v)};
}
NIBBLE_INLINE F32x16 where_nan(F32x16 a, F32x16 then, F32x16 otherwise) {
  return {_mm512_mask_mov_ps(otherwise.v, _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), then.v)};
}
NIBBLE_INLINE __m256 lower(F32x16 a) { return _mm512_castps512_ps256(a.v); }
NIBBLE_INLINE __m256 upper(F32x16 a) { return _mm512_extractf32x8_ps(a.v, 1); }
NIBBLE_INLINE F32x16 scale_by_pow2(F32x16 p, F32x16 t) {
  const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(t.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p.v), n))};
}

#elif defined(NIBBLE_ISA_avx2)

struct F32x16 {
  __m256 a, b;
};
NIBBLE_INLINE F32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
NIBBLE_INLINE F32x16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
NIBBLE_INLINE F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
NIBBLE_INLINE void store(float* p, F32x16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
NIBBLE_INLINE F32x16 add(F32x16 x, F32x16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
NIBBLE_INLINE F32x16 sub(F32x16 x, F32x16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
NIBBLE_INLINE F32x16 mul(F32x16 x, F32x16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
NIBBLE_INLINE F32x16 div(F32x16 x, F32x16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
NIBBLE_INLINE F32x16 fma(F32x16 x, F32x16 y, F32x16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
NIBBLE_INLINE F32x16 negative(F32x16 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(x.a, sign), _mm256_xor_ps(x.b, sign)};
}
NIBBLE_INLINE F32x16 abs(F32x16 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
NIBBLE_INLINE F32x16 max(F32x16 x, F32x16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
NIBBLE_INLINE F32x16 where_less(F32x16 x, F32x16 y, F32x16 then, F32x16 otherwise) {
  return {_mm256_blendv_ps(otherwise.a, then.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
          _mm256_blendv_ps(otherwise.b, then.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}
NIBBLE_INLINE F32x16 where_nan(F32x16 x, F32x16 then, F32x16 otherwise) {
  return {_mm256_blendv_ps(otherwise.a, then.a, _mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q)),
          _mm256_blendv_ps(otherwise.b, then.b, _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q))};
}
NIBBLE_INLINE __m256 lower(F32x16 x) { return x.a; }
NIBBLE_INLINE __m256 upper(F32x16 x) { return x.b; }
NIBBLE_INLINE __m256 scale_by_pow2(__m256 p, __m256 t) {
  const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), n));
}
NIBBLE_INLINE F32x16 scale_by_pow2(F32x16 p, F32x16 t) {
  return {scale_by_pow2(p.a, t.a), scale_by_pow2(p.b, t.b)};
}

#elif defined(NIBBLE_ISA_neon)

struct F32x16 {
  float32x4_t v[4];
};
#define NIBBLE_NEON_EACH(expr)                   \
  F32x16 r;                                      \
  for (int i = 0; i < 4; ++i) r.v[i] = (expr);   \
  return r
NIBBLE_INLINE F32x16 zero() { NIBBLE_NEON_EACH(vdupq_n_f32(0.0f)); }
NIBBLE_INLINE F32x16 set1(float x) { NIBBLE_NEON_EACH(vdupq_n_f32(x)); }
NIBBLE_INLINE F32x16 load(const float* p) { NIBBLE_NEON_EACH(vld1q_f32(p + 4 * i)); }
NIBBLE_INLINE void store(float* p, F32x16 a) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.v[i]);
}
NIBBLE_INLINE F32x16 add(F32x16 a, F32x16 b) { NIBBLE_NEON_EACH(vaddq_f32(a.v[i], b.v[i])); }
NIBBLE_INLINE F32x16 sub(F32x16 a, F32x16 b) { NIBBLE_NEON_EACH(vsubq_f32(a.v[i], b.v[i])); }
NIBBLE_INLINE F32x16 mul(F32x16 a, F32x16 b) { NIBBLE_NEON_EACH(vmulq_f32(a.v[i], b.v[i])); }
NIBBLE_INLINE F32x16 div(F32x16 a, F32x16 b) { NIBBLE_NEON_EACH(vdivq_f32(a.v[i], b.v[i])); }
NIBBLE_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { NIBBLE_NEON_EACH(vfmaq_f32(c.v[i], a.v[i], b.v[i])); }
NIBBLE_INLINE F32x16 negative(F32x16 a) { NIBBLE_NEON_EACH(vnegq_f32(a.v[i])); }
NIBBLE_INLINE F32x16 abs(F32x16 a) { NIBBLE_NEON_EACH(vabsq_f32(a.v[i])); }
NIBBLE_INLINE F32x16 max(F32x16 a, F32x16 b) {
  NIBBLE_NEON_EACH(vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]));
}
NIBBLE_INLINE F32x16 where_less(F32x16 a, F32x16 b, F32x16 then, F32x16 otherwise) {
  NIBBLE_NEON_EACH(vbslq_f32(vcltq_f32(a.v[i], b.v[i]), then.v[i], otherwise.v[i]));
}
NIBBLE_INLINE F32x16 where_nan(F32x16 a, F32x16 then, F32x16 otherwise) {
  NIBBLE_NEON_EACH(vbslq_f32(vceqq_f32(a.v[i], a.v[i]), otherwise.v[i], then.v[i]));
}
NIBBLE_INLINE F32x16 scale_by_pow2(F32x16 p, F32x16 t) {
  NIBBLE_NEON_EACH(vreinterpretq_f32_u32(
      vaddq_u32(vreinterpretq_u32_f32(p.v[i]), vshlq_n_u32(vreinterpretq_u32_f32(t.v[i]), 23))));
}
#undef NIBBLE_NEON_EACH

#else  // portable: the meaning of the others

struct F32x16 {
  float v[kLanes];
};
#define NIBBLE_EACH(expr)                            \
  F32x16 r;                                          \
  for (int i = 0; i < kLanes; ++i) r.v[i] = (expr);  \
  return r
NIBBLE_INLINE F32x16 zero() { NIBBLE_EACH(0.0f); }
NIBBLE_INLINE F32x16 set1(float x) { NIBBLE_EACH(x); }
NIBBLE_INLINE F32x16 load(const float* p) { NIBBLE_EACH(p[i]); }
NIBBLE_INLINE void store(float* p, F32x16 a) {
  for (int i = 0; i < kLanes; ++i) p[i] = a.v[i];
}
NIBBLE_INLINE F32x16 add(F32x16 a, F32x16 b) { NIBBLE_EACH(num::add(a.v[i], b.v[i])); }
NIBBLE_INLINE F32x16 sub(F32x16 a, F32x16 b) { NIBBLE_EACH(num::sub(a.v[i], b.v[i])); }
NIBBLE_INLINE F32x16 mul(F32x16 a, F32x16 b) { NIBBLE_EACH(num::mul(a.v[i], b.v[i])); }
NIBBLE_INLINE F32x16 div(F32x16 a, F32x16 b) { NIBBLE_EACH(num::div(a.v[i], b.v[i])); }
NIBBLE_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { NIBBLE_EACH(num::fma(a.v[i], b.v[i], c.v[i])); }
NIBBLE_INLINE F32x16 negative(F32x16 a) { NIBBLE_EACH(-a.v[i]); }
NIBBLE_INLINE F32x16 abs(F32x16 a) { NIBBLE_EACH(num::abs(a.v[i])); }
NIBBLE_INLINE F32x16 max(F32x16 a, F32x16 b) { NIBBLE_EACH(num::max(a.v[i], b.v[i])); }
NIBBLE_INLINE F32x16 where_less(F32x16 a, F32x16 b, F32x16 then, F32x16 otherwise) {
  NIBBLE_EACH(a.v[i] < b.v[i] ? then.v[i] : otherwise.v[i]);
}
NIBBLE_INLINE F32x16 where_nan(F32x16 a, F32x16 then, F32x16 otherwise) {
  NIBBLE_EACH(a.v[i] != a.v[i] ? then.v[i] : otherwise.v[i]);
}
NIBBLE_INLINE F32x16 scale_by_pow2(F32x16 p, F32x16 t) { NIBBLE_EACH(num::detail::scale_by_pow2(p.v[i], t.v[i])); }
#undef NIBBLE_EACH

#endif

// The tree's last four steps (core/numerics/reduce.h): lane j += lane j + 8, then 4, 2, 1.
#if defined(NIBBLE_ISA_avx2) || defined(NIBBLE_ISA_avx512)
NIBBLE_INLINE float fold(F32x16 x) {
  const __m256 eight = _mm256_add_ps(lower(x), upper(x));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
NIBBLE_INLINE float largest(F32x16 x) {
  const __m256 eight = _mm256_max_ps(lower(x), upper(x));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
#else
NIBBLE_INLINE float fold(F32x16 x) {
  float lane[kLanes];
  store(lane, x);
  for (int s = kLanes / 2; s > 0; s /= 2) {
    for (int j = 0; j < s; ++j) lane[j] = num::add(lane[j], lane[j + s]);
  }
  return lane[0];
}
NIBBLE_INLINE float largest(F32x16 x) {
  float lane[kLanes];
  store(lane, x);
  for (int s = kLanes / 2; s > 0; s /= 2) {
    for (int j = 0; j < s; ++j) lane[j] = num::max(lane[j], lane[j + s]);
  }
  return lane[0];
}
#endif

}  // namespace nibble::cpu::NIBBLE_ISA
