// simd.h: sixteen floats at a time, for files in kernels/ only.
//
// Every operation is the IEEE one on each lane, so all instruction sets give the same bits; there is
// no horizontal operation: sums over lanes go through the tree of core/numerics/reduce.h.
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

#define NIBBLE_INLINE inline __attribute__((always_inline))

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
#undef NIBBLE_EACH

#endif

}  // namespace nibble::cpu::NIBBLE_ISA
