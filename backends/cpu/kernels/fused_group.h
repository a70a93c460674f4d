// fused_group.h: one fused sum (core/numerics/fused_dot.h) for sixteen outputs at once.
//
// Why float and int32 arithmetic is exact here, given operands of at most 11 significant bits:
//   m          by add and max of 16-bit exponents; a zero has so low a one that it never sets m, an
//              infinity or NaN so high a one that m shows it
//   a * b      at most 22 bits; where its exponent lies below float's range, its term is 0 either way
//              (m >= F - 126, so what a rounded product can change is below 1)
//   * 2^(F-m)  a power of two; if the product underflows, it is below 1 and truncates to 0 either way
//   S          |term| < 2^(F + 2) fits, and so do 16 of them at F = 25 (16 * (2 - 2^-7)^2 * 2^25 < 2^31);
//              c (< 2^(F + 1)) may not: that is looked at before it is added
//   result     S truncated to 24 bits, times 2^(m - F) >= 2^-126: a multiple of the least normal number,
//              never a subnormal; past 2^128 the multiplication gives infinity, as the rule wants
// Everything else (m > 126: inf, NaN, overflow of a * b; m < F - 126 with a term; a large S) is left to
// the scalar model, which is always right.
#pragma once

#include "backends/cpu/packed_weight.h"
#include "backends/cpu/simd.h"
#include "core/numerics/fused_dot.h"

namespace nibble::cpu::NIBBLE_ISA {

constexpr int kZeroExponent = -8000, kHugeExponent = 16000;  // their sums stay apart, in 16 bits
constexpr int kNoTerm = -4000;                               // below: every term is zero
constexpr int kMostExponent = 126;

// What the alignment sees of a value; plain, so that a loop over it vectorises.
template <int MinExponent>
NIBBLE_INLINE std::int32_t exponent_of(float v) {
  const std::uint32_t u = num::bit_cast<std::uint32_t>(v) & 0x7FFFFFFFu;
  const auto e = static_cast<std::int32_t>(u >> 23) - 127;
  const std::int32_t finite = e < MinExponent ? MinExponent : e;
  return u == 0 ? kZeroExponent : u >= 0x7F800000u ? kHugeExponent : finite;
}
// The same exponent twice in one word: broadcasting a word needs no shuffle, a half word does.
NIBBLE_INLINE std::int32_t exponent_pair(std::int32_t e) {
  return static_cast<std::int32_t>((static_cast<std::uint32_t>(e) & 0xFFFFu) * 0x10001u);
}

// S beyond this: c might not fit, or rounding S might.
template <int G, int F>
constexpr std::int64_t kMostSum = 0x7FFFFF00 - (std::int64_t{1} << (F + 1));
template <int G, int F>
constexpr bool kSumFits = (std::int64_t{G} << (F + 2)) <= kMostSum<G, F>;

// a [G], ea [G] pairs, b and eb [G, 16]. False, and c as it was: the scalar model's turn.
#if defined(NIBBLE_ISA_avx512)

template <int G, int F>
NIBBLE_INLINE bool fast_group(const float* a, const std::int32_t* ea, const float* b,
                              const std::int16_t* eb, F32x16& c) {
  __m256i top = _mm256_set1_epi16(-32000);
#pragma GCC unroll 16
  for (int k = 0; k < G; ++k) {
    const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(eb + k * kPanelRows));
    top = _mm256_max_epi16(top, _mm256_add_epi16(_mm256_set1_epi32(ea[k]), w));
  }
  const __m512i bits = _mm512_castps_si512(c.v);
  const __m512i field = _mm512_srli_epi32(_mm512_slli_epi32(bits, 1), 24);
  __m512i e = _mm512_sub_epi32(_mm512_max_epi32(field, _mm512_set1_epi32(1)), _mm512_set1_epi32(127));
  e = _mm512_mask_mov_epi32(e, _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7FFFFFFF)),
                            _mm512_set1_epi32(kZeroExponent));
  __m512i m = _mm512_max_epi32(_mm512_cvtepi16_epi32(top), e);
  const __m512i least = _mm512_set1_epi32(F - 126);
  const __mmask16 high = _mm512_cmpgt_epi32_mask(m, _mm512_set1_epi32(kMostExponent));
  const __mmask16 low = _mm512_mask_cmpgt_epi32_mask(_mm512_cmplt_epi32_mask(m, least), m,
                                                     _mm512_set1_epi32(kNoTerm));
  if (static_cast<unsigned>(high) | static_cast<unsigned>(low)) return false;
  m = _mm512_max_epi32(m, least);
  const __m512 scale = _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_sub_epi32(_mm512_set1_epi32(F + 127), m), 23));
  __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 16
  for (int k = 0; k < G; ++k) {
    const __m512 p = _mm512_mul_ps(_mm512_set1_ps(a[k]), _mm512_loadu_ps(b + k * kPanelRows));
    sum = _mm512_add_epi32(sum, _mm512_cvttps_epi32(_mm512_mul_ps(p, scale)));
  }
  if constexpr (!kSumFits<G, F>) {
    const __m512i most = _mm512_set1_epi32(static_cast<int>(kMostSum<G, F>));
    if (_mm512_cmpgt_epi32_mask(_mm512_abs_epi32(sum), most) != 0) return false;
  }
  sum = _mm512_add_epi32(sum, _mm512_cvttps_epi32(_mm512_mul_ps(c.v, scale)));
  const __m512 r = _mm512_cvt_roundepi32_ps(sum, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  const __m512i back = _mm512_slli_epi32(_mm512_add_epi32(m, _mm512_set1_epi32(127 - F)), 23);
  c.v = _mm512_mul_ps(r, _mm512_castsi512_ps(back));
  return true;
}

#elif defined(NIBBLE_ISA_avx2)

struct HalfGroup {  // eight of the sixteen outputs
  __m256i m, bad;
  __m256 scale;

  template <int F>
  NIBBLE_INLINE void align(__m256 c, __m128i top) {
    const __m256i bits = _mm256_castps_si256(c);
    const __m256i field = _mm256_srli_epi32(_mm256_slli_epi32(bits, 1), 24);
    const __m256i e =
        _mm256_sub_epi32(_mm256_max_epi32(field, _mm256_set1_epi32(1)), _mm256_set1_epi32(127));
    const __m256i zero = _mm256_castps_si256(_mm256_cmp_ps(c, _mm256_setzero_ps(), _CMP_EQ_OQ));
    m = _mm256_max_epi32(_mm256_cvtepi16_epi32(top),
                         _mm256_blendv_epi8(e, _mm256_set1_epi32(kZeroExponent), zero));
    const __m256i least = _mm256_set1_epi32(F - 126);
    const __m256i high = _mm256_cmpgt_epi32(m, _mm256_set1_epi32(kMostExponent));
    const __m256i low = _mm256_and_si256(_mm256_cmpgt_epi32(least, m),
                                         _mm256_cmpgt_epi32(m, _mm256_set1_epi32(kNoTerm)));
    bad = _mm256_or_si256(high, low);
    m = _mm256_max_epi32(m, least);
    scale = _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(F + 127), m), 23));
  }
  // Rounding toward zero from the nearest: one step back where the magnitude grew.
  template <int F>
  NIBBLE_INLINE __m256 result(__m256i sum, __m256 c) const {
    sum = _mm256_add_epi32(sum, _mm256_cvttps_epi32(_mm256_mul_ps(c, scale)));
    const __m256i size = _mm256_abs_epi32(sum);
    const __m256 near = _mm256_cvtepi32_ps(size);
    const __m256i grew = _mm256_cmpgt_epi32(_mm256_cvttps_epi32(near), size);
    const __m256i sign = _mm256_and_si256(sum, _mm256_set1_epi32(static_cast<int>(0x80000000u)));
    const __m256i r = _mm256_or_si256(_mm256_add_epi32(_mm256_castps_si256(near), grew), sign);
    const __m256i back = _mm256_slli_epi32(_mm256_add_epi32(m, _mm256_set1_epi32(127 - F)), 23);
    return _mm256_mul_ps(_mm256_castsi256_ps(r), _mm256_castsi256_ps(back));
  }
};

template <int G, int F>
NIBBLE_INLINE bool fast_group(const float* a, const std::int32_t* ea, const float* b,
                              const std::int16_t* eb, F32x16& c) {
  __m256i top = _mm256_set1_epi16(-32000);
#pragma GCC unroll 16
  for (int k = 0; k < G; ++k) {
    const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(eb + k * kPanelRows));
    top = _mm256_max_epi16(top, _mm256_add_epi16(_mm256_set1_epi32(ea[k]), w));
  }
  HalfGroup lo, hi;
  lo.align<F>(c.a, _mm256_castsi256_si128(top));
  hi.align<F>(c.b, _mm256_extracti128_si256(top, 1));
  const __m256i bad = _mm256_or_si256(lo.bad, hi.bad);
  if (!_mm256_testz_si256(bad, bad)) return false;
  __m256i s0 = _mm256_setzero_si256(), s1 = s0;
#pragma GCC unroll 16
  for (int k = 0; k < G; ++k) {
    const __m256 x = _mm256_set1_ps(a[k]);
    const __m256 p = _mm256_mul_ps(x, _mm256_loadu_ps(b + k * kPanelRows));
    const __m256 q = _mm256_mul_ps(x, _mm256_loadu_ps(b + k * kPanelRows + 8));
    s0 = _mm256_add_epi32(s0, _mm256_cvttps_epi32(_mm256_mul_ps(p, lo.scale)));
    s1 = _mm256_add_epi32(s1, _mm256_cvttps_epi32(_mm256_mul_ps(q, hi.scale)));
  }
  if constexpr (!kSumFits<G, F>) {
    const __m256i most = _mm256_set1_epi32(static_cast<int>(kMostSum<G, F>));
    const __m256i large = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_abs_epi32(s0), most),
                                          _mm256_cmpgt_epi32(_mm256_abs_epi32(s1), most));
    if (!_mm256_testz_si256(large, large)) return false;
  }
  c.a = lo.result<F>(s0, c.a);
  c.b = hi.result<F>(s1, c.b);
  return true;
}

#else

template <int G, int F>
NIBBLE_INLINE bool fast_group(const float* a, const std::int32_t* ea, const float* b,
                              const std::int16_t* eb, F32x16& c) {
  float v[kLanes], scale[kLanes];
  std::int16_t top[kLanes];
  std::int32_t m[kLanes], sum[kLanes];
  store(v, c);
  for (int j = 0; j < kLanes; ++j) top[j] = -32000;
  for (int k = 0; k < G; ++k) {
    const auto x = static_cast<std::int16_t>(ea[k]);
    for (int j = 0; j < kLanes; ++j) {
      const auto e = static_cast<std::int16_t>(x + eb[k * kPanelRows + j]);
      top[j] = e > top[j] ? e : top[j];
    }
  }
  std::int32_t bad = 0;
  for (int j = 0; j < kLanes; ++j) {
    const std::uint32_t u = num::bit_cast<std::uint32_t>(v[j]) & 0x7FFFFFFFu;
    const auto field = static_cast<std::int32_t>(u >> 23);
    const std::int32_t e = u == 0 ? kZeroExponent : (field < 1 ? 1 : field) - 127;
    const std::int32_t most = e > top[j] ? e : top[j];
    bad |= most > kMostExponent ? 1 : 0;
    bad |= most < F - 126 && most > kNoTerm ? 1 : 0;
    m[j] = most < F - 126 ? F - 126 : most;
    scale[j] = num::bit_cast<float>(static_cast<std::uint32_t>(F + 127 - m[j]) << 23);
    sum[j] = 0;
  }
  if (bad != 0) return false;
  for (int k = 0; k < G; ++k) {
    for (int j = 0; j < kLanes; ++j) {
      sum[j] += static_cast<std::int32_t>(a[k] * b[k * kPanelRows + j] * scale[j]);
    }
  }
  if constexpr (!kSumFits<G, F>) {
    constexpr auto kMost = static_cast<std::int32_t>(kMostSum<G, F>);
    for (int j = 0; j < kLanes; ++j) bad |= sum[j] > kMost || sum[j] < -kMost ? 1 : 0;
    if (bad != 0) return false;
  }
  for (int j = 0; j < kLanes; ++j) {
    const std::int32_t s = sum[j] + static_cast<std::int32_t>(v[j] * scale[j]);
    const std::int32_t size = s < 0 ? -s : s;
    const float near = static_cast<float>(size);
    const std::uint32_t grew = static_cast<std::int32_t>(near) > size ? 1 : 0;
    const std::uint32_t sign = static_cast<std::uint32_t>(s) & 0x80000000u;
    const float r = num::bit_cast<float>((num::bit_cast<std::uint32_t>(near) - grew) | sign);
    v[j] = r * num::bit_cast<float>(static_cast<std::uint32_t>(m[j] + 127 - F) << 23);
  }
  c = load(v);
  return true;
}

#endif

template <int G, int F, int MinExponent>
__attribute__((noinline)) static void exact_group(const float* a, const float* b, float* c) {
  for (int j = 0; j < kPanelRows; ++j) {
    c[j] = num::fused_dot<G, F, 24, MinExponent, kPanelRows>(a, b + j, c[j]);
  }
}

// c[r, 16] over k steps of Rows rows, k a multiple of G: rows take turns, so that one's long way from
// S back to c hides behind the others' products.
template <int G, int F, int MinExponent, int Rows>
NIBBLE_INLINE void fused_chain(const float* a, const std::int32_t* ea, std::int64_t stride,
                               const float* b, const std::int16_t* eb, std::int64_t k, float* c) {
  F32x16 sum[Rows];
  for (int r = 0; r < Rows; ++r) sum[r] = load(c + r * kPanelRows);
  for (std::int64_t k0 = 0; k0 < k; k0 += G) {
    for (int r = 0; r < Rows; ++r) {
      const float* x = a + r * stride + k0;
      if (fast_group<G, F>(x, ea + r * stride + k0, b + k0 * kPanelRows, eb + k0 * kPanelRows,
                           sum[r])) {
        continue;
      }
      alignas(64) float lanes[kPanelRows];
      store(lanes, sum[r]);
      exact_group<G, F, MinExponent>(x, b + k0 * kPanelRows, lanes);
      sum[r] = load(lanes);
    }
  }
  for (int r = 0; r < Rows; ++r) store(c + r * kPanelRows, sum[r]);
}

}  // namespace nibble::cpu::NIBBLE_ISA
