// lanes.h: the functions of core/numerics/scalar.h for sixteen lanes: the same operations in the same
// order on each lane, so the same bits.
#pragma once

#include "backends/cpu/simd.h"
#include "core/numerics/reduce.h"

// Accumulators stay in registers only if the loops over them are unrolled.
#if defined(__clang__)
#define NIBBLE_UNROLL _Pragma("unroll")
#else
#define NIBBLE_UNROLL _Pragma("GCC unroll 16")
#endif

namespace nibble::cpu::NIBBLE_ISA {

// The first `count` of 16 lanes; the others read as +0 and are not written.
#if defined(NIBBLE_ISA_avx512)
NIBBLE_INLINE __mmask16 first_lanes(std::int64_t count) {
  return static_cast<__mmask16>(count >= kLanes ? 0xFFFF : (1 << count) - 1);
}
NIBBLE_INLINE F32x16 load_part(const float* p, std::int64_t count) {
  return {_mm512_maskz_loadu_ps(first_lanes(count), p)};
}
NIBBLE_INLINE void store_part(float* p, F32x16 a, std::int64_t count) {
  _mm512_mask_storeu_ps(p, first_lanes(count), a.v);
}
// The first `count` lanes of x (none or all of them where it is out of range), then `rest`.
NIBBLE_INLINE F32x16 first_of(F32x16 x, int count, F32x16 rest) {
  return {_mm512_mask_mov_ps(rest.v, first_lanes(count < 0 ? 0 : count), x.v)};
}
#else
NIBBLE_INLINE F32x16 load_part(const float* p, std::int64_t count) {
  if (count >= kLanes) return load(p);
  float v[kLanes] = {};
  for (int i = 0; i < count; ++i) v[i] = p[i];
  return load(v);
}
NIBBLE_INLINE void store_part(float* p, F32x16 a, std::int64_t count) {
  if (count >= kLanes) return store(p, a);
  float v[kLanes];
  store(v, a);
  for (int i = 0; i < count; ++i) p[i] = v[i];
}
// The first `count` lanes of x (none or all of them where it is out of range), then `rest`.
NIBBLE_INLINE F32x16 first_of(F32x16 x, int count, F32x16 rest) {
  static constexpr float kLane[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return where_less(load(kLane), set1(static_cast<float>(count)), x, rest);
}
#endif

// Lane c of x[r] becomes lane r of x[c].
#if defined(NIBBLE_ISA_avx512)
NIBBLE_INLINE void transpose(F32x16 (&x)[kLanes]) {
  __m512 two[kLanes], four[kLanes];  // rows interleaved in quarters of 4 lanes: pairs, then fours
  NIBBLE_UNROLL
  for (int i = 0; i < kLanes; i += 2) {
    two[i] = _mm512_unpacklo_ps(x[i].v, x[i + 1].v);
    two[i + 1] = _mm512_unpackhi_ps(x[i].v, x[i + 1].v);
  }
  NIBBLE_UNROLL
  for (int i = 0; i < kLanes; i += 4) {
    const auto d = [&](int j) { return _mm512_castps_pd(two[i + j]); };
    four[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(d(0), d(2)));
    four[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(d(0), d(2)));
    four[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(d(1), d(3)));
    four[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(d(1), d(3)));
  }
  NIBBLE_UNROLL
  for (int c = 0; c < 4; ++c) {  // quarter q of four[4 g + c]: column 4 q + c of rows 4 g ..
    const __m512 a = _mm512_shuffle_f32x4(four[c], four[4 + c], 0x88);
    const __m512 b = _mm512_shuffle_f32x4(four[c], four[4 + c], 0xDD);
    const __m512 e = _mm512_shuffle_f32x4(four[8 + c], four[12 + c], 0x88);
    const __m512 f = _mm512_shuffle_f32x4(four[8 + c], four[12 + c], 0xDD);
    x[c].v = _mm512_shuffle_f32x4(a, e, 0x88);
    x[4 + c].v = _mm512_shuffle_f32x4(b, f, 0x88);
    x[8 + c].v = _mm512_shuffle_f32x4(a, e, 0xDD);
    x[12 + c].v = _mm512_shuffle_f32x4(b, f, 0xDD);
  }
}
#else
NIBBLE_INLINE void transpose(F32x16 (&x)[kLanes]) {
  float from[kLanes][kLanes], to[kLanes][kLanes];
  for (int r = 0; r < kLanes; ++r) store(from[r], x[r]);
  for (int r = 0; r < kLanes; ++r) {
    for (int c = 0; c < kLanes; ++c) to[c][r] = from[r][c];
  }
  for (int c = 0; c < kLanes; ++c) x[c] = load(to[c]);
}
#endif

// num::tree_sum of x, or num::tree_sum_squares. Lanes that a last part of x does not reach add +0, which
// changes no sum that began at +0.
template <bool Squares>
NIBBLE_INLINE F32x16 sum_step(F32x16 sum, F32x16 v) {
  return Squares ? fma(v, v, sum) : add(sum, v);
}
template <bool Squares, int Registers>
NIBBLE_INLINE void sum_lanes(const float* x, std::int64_t n, int stride, F32x16* sums) {
  F32x16 sum[Registers];
  for (F32x16& s : sum) s = zero();
  std::int64_t i = 0;
  for (; i + stride <= n; i += stride) {
    NIBBLE_UNROLL
    for (int r = 0; r < Registers; ++r) sum[r] = sum_step<Squares>(sum[r], load(x + i + r * kLanes));
  }
  for (int r = 0; r < Registers; ++r) {
    const std::int64_t left = n - i - r * kLanes;
    sums[r] = left > 0 ? sum_step<Squares>(sum[r], load_part(x + i + r * kLanes, left)) : sum[r];
  }
}
template <bool Squares>
NIBBLE_INLINE float tree(const float* x, std::int64_t n) {
  F32x16 sums[num::kTreeLong / kLanes];
  int registers = num::tree_lanes(n) / kLanes;
  if (n <= num::kTreeSwitch) {
    sum_lanes<Squares, num::kTreeShort / kLanes>(x, n, num::kTreeShort, sums);
  } else {
    constexpr int kAtOnce = 4;
    for (int r = 0; r < registers; r += kAtOnce) {
      sum_lanes<Squares, kAtOnce>(x + r * kLanes, n - r * kLanes, num::kTreeLong, sums + r);
    }
  }
  for (registers /= 2; registers > 0; registers /= 2) {
    for (int r = 0; r < registers; ++r) sums[r] = add(sums[r], sums[r + registers]);
  }
  return fold(sums[0]);
}

NIBBLE_INLINE F32x16 exp(F32x16 x) {
  const F32x16 hi = set1(0x1.715476p+0f), round = set1(num::detail::kRound);
  const F32x16 t = fma(x, hi, round);
  const F32x16 n = sub(t, round);
  const F32x16 f = fma(x, set1(0x1.4ae0cp-26f), fma(x, hi, negative(n)));
  F32x16 p = set1(0x1.41fbaep-13f);
  p = fma(p, f, set1(0x1.5f3e52p-10f));
  p = fma(p, f, set1(0x1.3b2d4ep-7f));
  p = fma(p, f, set1(0x1.c6aee8p-5f));
  p = fma(p, f, set1(0x1.ebfbdcp-3f));
  p = fma(p, f, set1(0x1.62e43p-1f));
  p = fma(p, f, set1(1.0f));
  const F32x16 low = where_less(x, set1(-87.3f), zero(), scale_by_pow2(p, t));
  const F32x16 all = where_less(set1(88.37f), x, set1(__builtin_inff()), low);
  return where_nan(x, x, all);
}

NIBBLE_INLINE F32x16 log1p_unit(F32x16 y) {
  const F32x16 s = div(y, add(set1(2.0f), y));
  const F32x16 q = mul(s, s);
  F32x16 p = set1(num::div(1.0f, 17.0f));
  p = fma(p, q, set1(num::div(1.0f, 15.0f)));
  p = fma(p, q, set1(num::div(1.0f, 13.0f)));
  p = fma(p, q, set1(num::div(1.0f, 11.0f)));
  p = fma(p, q, set1(num::div(1.0f, 9.0f)));
  p = fma(p, q, set1(num::div(1.0f, 7.0f)));
  p = fma(p, q, set1(0.2f));
  p = fma(p, q, set1(num::div(1.0f, 3.0f)));
  const F32x16 s2 = add(s, s);
  return fma(mul(s2, q), p, s2);
}

NIBBLE_INLINE F32x16 one_and_exp_of_negative(F32x16 x) { return add(set1(1.0f), exp(negative(x))); }
NIBBLE_INLINE F32x16 sigmoid(F32x16 x) { return div(set1(1.0f), one_and_exp_of_negative(x)); }
NIBBLE_INLINE F32x16 silu(F32x16 x) { return div(x, one_and_exp_of_negative(x)); }

NIBBLE_INLINE F32x16 softplus(F32x16 x) {
  const F32x16 y = add(max(x, zero()), log1p_unit(exp(negative(abs(x)))));
  return where_less(set1(20.0f), x, x, y);
}

}  // namespace nibble::cpu::NIBBLE_ISA
