// linear_fp4.cpp: Linear as the block-scaled FP4 unit adds it up (core/numerics/fused_fp4.h).
//   map    panel = 16 outputs; 128 k of a panel are decoded once and serve all rows of the block
//   sums   of 16 code products in int32; then doubles, in which nothing rounds: a term is an integer of
//          20 bits times a power of two, truncated at 2^(m - 35) it is below 2^47 units of that, the
//          accumulator below 2^36; so the sum is exact, and clearing a double's low 29 bits truncates it to
//          float32. Infinities and NaN go through by themselves: there is no slow path
//   m      zero scales have so low an exponent that they never set it; a zero accumulator has float32's
//          least, which only matters where every term is zero
#include "backends/cpu/kernels/linear_finish.h"
#include "backends/cpu/kernels/linear_fused.h"
#include "backends/cpu/kernels/row_decode.h"
#include "core/numerics/fused_fp4.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

constexpr int kZeroScale = -1000, kGroup = num::kFp4Group, kSub = num::kFp4Block;
constexpr int kBlocks = kSegment / kSub;
constexpr std::uint64_t kFloatBits = ~((std::uint64_t{1} << 29) - 1);
static_assert(kSegment % kGroup == 0 && kNvfp4Group == kGroup);

NIBBLE_INLINE double scale_value(std::uint8_t byte) {
  return static_cast<double>(num::e4m3_to_float(byte & 0x7F));
}
NIBBLE_INLINE std::int32_t scale_exponent(std::uint8_t byte) {
  return num::detail::scale_sig(byte) == 0 ? kZeroScale : num::detail::scale_exponent(byte);
}

struct Fp4Weights {
  alignas(64) std::int16_t codes[kSegment / 2][kPanelRows][2];  // twice their values, pairs of k
  alignas(64) double scales[kBlocks][kPanelRows];
  alignas(64) std::int32_t exponents[kBlocks][kPanelRows];

  // `count` k from k0 on, whole groups: decoders pad K with zeros to them.
  void open(const PackedWeight& w, std::int64_t panel, std::int64_t k0, std::int64_t count) {
    if (w.layout == Layout::rows) return open_with<RowDecoder<WeightFormat::nvfp4>>(w, panel, k0, count);
    open_with<Decoder<WeightFormat::nvfp4>>(w, panel, k0, count);
  }

 private:
  template <class AnyDecoder>
  NIBBLE_INLINE void open_with(const PackedWeight& w, std::int64_t panel, std::int64_t k0, std::int64_t count) {
    AnyDecoder decoder;
    decoder.open(w, w.codes + panel * w.panel_bytes, k0, count);
    for (std::int64_t b = 0; b < count / kSub; ++b) {
      const std::uint8_t* bytes = decoder.scale_codes(b);
      for (int j = 0; j < kPanelRows; ++j) {
        scales[b][j] = scale_value(bytes[j]);
        exponents[b][j] = scale_exponent(bytes[j]);
        decoder.scales[b * kPanelRows + j] = 2.0f;
      }
    }
    for (std::int64_t c = 0; c < count / 4; ++c) {
      F32x16 four[4];
      decoder.chunk(c, four);
      for (int j = 0; j < 4; ++j) {
        float values[kPanelRows];
        store(values, four[j]);
        for (int r = 0; r < kPanelRows; ++r) {
          codes[c * 2 + j / 2][r][j % 2] = static_cast<std::int16_t>(static_cast<std::int32_t>(values[r]));
        }
      }
    }
  }
};

struct Fp4Row {  // one row's part of a group
  const std::int16_t* codes;
  const double* scales;
  const std::int32_t* exponents;
};

// c[16] and a group: codes [32][16][2], scales and exponents [4][16].
#if defined(NIBBLE_ISA_avx2) || defined(NIBBLE_ISA_avx512)

// Sums of a block's products for eight outputs.
struct BlockSums {
  __m256i lo, hi;
};
NIBBLE_INLINE BlockSums block_sums(const std::int16_t* x, const std::int16_t (*w)[kPanelRows][2]) {
  BlockSums s = {_mm256_setzero_si256(), _mm256_setzero_si256()};
#pragma GCC unroll 8
  for (int i = 0; i < kSub / 2; ++i) {
    std::int32_t pair;
    std::memcpy(&pair, x + 2 * i, sizeof pair);
    const __m256i both = _mm256_set1_epi32(pair);
    const auto* p = reinterpret_cast<const __m256i*>(w[i]);
    s.lo = _mm256_add_epi32(s.lo, _mm256_madd_epi16(both, _mm256_load_si256(p)));
    s.hi = _mm256_add_epi32(s.hi, _mm256_madd_epi16(both, _mm256_load_si256(p + 1)));
  }
  return s;
}

NIBBLE_INLINE __m256i power(__m128i exponent, int by) {  // 2^(exponent + by) in each double
  const __m256i e = _mm256_cvtepi32_epi64(_mm_add_epi32(exponent, _mm_set1_epi32(1023 + by)));
  return _mm256_slli_epi64(e, 52);
}
NIBBLE_INLINE __m256d truncated(__m256d v) {
  return _mm256_round_pd(v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}
NIBBLE_INLINE __m128i quarter(__m256i v, int i) {
  return i == 0 ? _mm256_castsi256_si128(v) : _mm256_extracti128_si256(v, 1);
}

NIBBLE_INLINE void fp4_group(const Fp4Row& x, const std::int16_t (*codes)[kPanelRows][2],
                             const double (*scales)[kPanelRows],
                             const std::int32_t (*exponents)[kPanelRows], float* c) {
  BlockSums s[4];
  __m256i m[2];
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(c + 8 * h));
    const __m256i field = _mm256_srli_epi32(_mm256_slli_epi32(bits, 1), 24);
    m[h] = _mm256_sub_epi32(_mm256_max_epi32(field, _mm256_set1_epi32(1)), _mm256_set1_epi32(127));
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      const __m256i w = _mm256_load_si256(reinterpret_cast<const __m256i*>(exponents[b] + 8 * h));
      m[h] = _mm256_max_epi32(m[h], _mm256_add_epi32(w, _mm256_set1_epi32(x.exponents[b])));
    }
  }
#pragma GCC unroll 4
  for (int b = 0; b < 4; ++b) s[b] = block_sums(x.codes + kSub * b, codes + kSub / 2 * b);
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    const __m128i e = quarter(m[q / 2], q % 2);
    const __m256d scale = _mm256_castsi256_pd(
        power(_mm_sub_epi32(_mm_setzero_si128(), e), num::kFp4FractionBits));
    const __m256d acc = _mm256_cvtps_pd(_mm_loadu_ps(c + 4 * q));
    __m256d sum = _mm256_add_pd(_mm256_setzero_pd(), truncated(_mm256_mul_pd(acc, scale)));
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      const __m256d w = _mm256_mul_pd(_mm256_load_pd(scales[b] + 4 * q), _mm256_set1_pd(x.scales[b]));
      const __m256d v = _mm256_cvtepi32_pd(quarter(q < 2 ? s[b].lo : s[b].hi, q % 2));
      sum = _mm256_add_pd(sum, truncated(_mm256_mul_pd(_mm256_mul_pd(v, w), scale)));
    }
    sum = _mm256_and_pd(
        sum, _mm256_castsi256_pd(_mm256_set1_epi64x(static_cast<long long>(kFloatBits))));
    const __m256d back = _mm256_castsi256_pd(power(e, -num::kFp4FractionBits));
    _mm_storeu_ps(c + 4 * q, _mm256_cvtpd_ps(_mm256_mul_pd(sum, back)));
  }
}

#else

NIBBLE_INLINE double power(std::int32_t e) {
  return num::bit_cast<double>(static_cast<std::uint64_t>(e + 1023) << 52);
}

NIBBLE_INLINE void fp4_group(const Fp4Row& x, const std::int16_t (*codes)[kPanelRows][2],
                             const double (*scales)[kPanelRows],
                             const std::int32_t (*exponents)[kPanelRows], float* c) {
  std::int32_t s[4][kPanelRows] = {}, m[kPanelRows];
  for (int k = 0; k < kGroup; ++k) {
    for (int j = 0; j < kPanelRows; ++j) s[k / kSub][j] += x.codes[k] * codes[k / 2][j][k % 2];
  }
  for (int j = 0; j < kPanelRows; ++j) {
    const auto field = static_cast<std::int32_t>(num::bit_cast<std::uint32_t>(c[j]) >> 23 & 255u);
    m[j] = (field > 1 ? field : 1) - 127;
    for (int b = 0; b < 4; ++b) {
      const std::int32_t e = exponents[b][j] + x.exponents[b];
      m[j] = e > m[j] ? e : m[j];
    }
  }
  for (int j = 0; j < kPanelRows; ++j) {
    const double scale = power(num::kFp4FractionBits - m[j]);
    double sum = 0.0 + __builtin_trunc(static_cast<double>(c[j]) * scale);
    for (int b = 0; b < 4; ++b) {
      sum += __builtin_trunc(static_cast<double>(s[b][j]) * (scales[b][j] * x.scales[b]) * scale);
    }
    sum = num::bit_cast<double>(num::bit_cast<std::uint64_t>(sum) & kFloatBits);
    c[j] = static_cast<float>(sum * power(m[j] - num::kFp4FractionBits));
  }
}

#endif

}  // namespace

void operand_fp4(const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t count,
                 std::int16_t* to, double* to_scales, std::int32_t* exponents) {
  for (std::int64_t k = 0; k < count; k += 2) {
    const std::uint32_t two = codes[k / 2];
    to[k] = static_cast<std::int16_t>(num::detail::twice_e2m1(two));
    to[k + 1] = static_cast<std::int16_t>(num::detail::twice_e2m1(two >> 4));
  }
  for (std::int64_t b = 0; b < count / kSub; ++b) {
    to_scales[b] = scale_value(scales[b]) * 0.25;  // both codes are doubled
    exponents[b] = scale_exponent(scales[b]);
  }
  for (std::int64_t k = count; k % kGroup != 0; ++k) to[k] = 0;
  for (std::int64_t b = count / kSub; b % (kGroup / kSub) != 0; ++b) {
    to_scales[b] = 0.0;
    exponents[b] = kZeroScale;
  }
}

void fp4_rows(const Fp4Block& f, std::int64_t panel_begin, std::int64_t panel_end) {
  const LinearBlock& b = f.linear;
  const std::int64_t cols = (b.weight->cols + kGroup - 1) / kGroup * kGroup;
  const auto bytes = static_cast<std::size_t>(b.rows) * kPanelRows * sizeof(float);
  Fp4Weights w;
  alignas(64) float totals[kFusedRows * kPanelRows], sums[kFusedRows * kPanelRows];
  for (std::int64_t p = panel_begin; p < panel_end; ++p) {
    std::memset(totals, 0, bytes);
    for (std::int64_t start = 0, segment = 0; start < cols; start += f.segment, ++segment) {
      const std::int64_t end = start + f.segment < cols ? start + f.segment : cols;
      std::memset(sums, 0, bytes);
      for (std::int64_t k0 = start; k0 < end; k0 += kSegment) {
        const std::int64_t count = end - k0 < kSegment ? end - k0 : kSegment;
        w.open(*b.weight, p, k0, count);
        for (std::int64_t r = 0; r < b.rows; ++r) {
          const std::int64_t at = r * f.stride + k0;
          for (std::int64_t g = 0; g < count; g += kGroup) {
            fp4_group({f.codes + at + g, f.scales + (at + g) / kSub, f.exponents + (at + g) / kSub},
                      w.codes + g / 2, w.scales + g / kSub, w.exponents + g / kSub,
                      sums + r * kPanelRows);
          }
        }
      }
      for (std::int64_t r = 0; r < b.rows; ++r) {
        float* total = totals + r * kPanelRows;
        store(total, add_segment(b, p, segment, r, load(sums + r * kPanelRows), load(total)));
      }
    }
    for (std::int64_t r = 0; r < b.rows; ++r) finish(b, p, r, load(totals + r * kPanelRows));
  }
}

void bare_fp4(const PackedWeight& weight, const std::int16_t* codes, const double* scales,
              const std::int32_t* exponents, float* c) {
  Fp4Weights w;
  w.open(weight, 0, 0, kGroup);
  fp4_group({codes, scales, exponents}, w.codes, w.scales, w.exponents, c);
}

}  // namespace nibble::cpu::NIBBLE_ISA
