#include "tools/roof_loops.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace nibble::tool {
namespace {

// Twelve chains cover a latency of 4 to 6 cycles at two multiply-adds a cycle. The values stay near
// 1: x = x * kShrink + kAdd has its fixed point there.
constexpr int kChains = 12;
constexpr float kShrink = 0.5f, kAdd = 0.5f;

using Words4 __attribute__((vector_size(32))) = std::uint64_t;

__attribute__((always_inline)) inline std::uint64_t sum_words(const std::uint64_t* data,
                                                              std::size_t words) {
  Words4 sum[4] = {};
  for (std::size_t i = 0; i < words; i += kReadWords) {
    for (std::size_t j = 0; j < kReadWords / 4; ++j) {
      Words4 v;
      std::memcpy(&v, data + i + 4 * j, sizeof v);
      sum[j % 4] += v;
    }
  }
  const Words4 all = sum[0] + sum[1] + sum[2] + sum[3];
  return all[0] + all[1] + all[2] + all[3];
}

float portable_chains(std::int64_t rounds) {
  float x[4 * kChains];
  for (float& v : x) v = 1;
  for (std::int64_t r = 0; r < rounds; ++r) {
    for (float& v : x) v = v * kShrink + kAdd;
  }
  float sum = 0;
  for (const float v : x) sum += v;
  return sum;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) std::uint64_t sum_avx2(const std::uint64_t* data,
                                                       std::size_t words) {
  return sum_words(data, words);
}

// Names for the chains: an array would be kept in memory by some compilers.
#define NIBBLE_CHAINS(OP) OP(0) OP(1) OP(2) OP(3) OP(4) OP(5) OP(6) OP(7) OP(8) OP(9) OP(10) OP(11)

__attribute__((target("avx2,fma"))) float avx2_chains(std::int64_t rounds) {
  const __m256 a = _mm256_set1_ps(kShrink), b = _mm256_set1_ps(kAdd);
#define NIBBLE_START(i) __m256 x##i = _mm256_set1_ps(1.0f + 0.0625f * i);
  NIBBLE_CHAINS(NIBBLE_START)
#undef NIBBLE_START
  for (std::int64_t r = 0; r < rounds; ++r) {
#define NIBBLE_STEP(i) x##i = _mm256_fmadd_ps(x##i, a, b);
    NIBBLE_CHAINS(NIBBLE_STEP)
#undef NIBBLE_STEP
  }
  __m256 sum = _mm256_setzero_ps();
#define NIBBLE_ADD(i) sum = _mm256_add_ps(sum, x##i);
  NIBBLE_CHAINS(NIBBLE_ADD)
#undef NIBBLE_ADD
  return _mm256_cvtss_f32(sum);
}

__attribute__((target("avx512f"))) float avx512_chains(std::int64_t rounds) {
  const __m512 a = _mm512_set1_ps(kShrink), b = _mm512_set1_ps(kAdd);
#define NIBBLE_START(i) __m512 x##i = _mm512_set1_ps(1.0f + 0.0625f * i);
  NIBBLE_CHAINS(NIBBLE_START)
#undef NIBBLE_START
  for (std::int64_t r = 0; r < rounds; ++r) {
#define NIBBLE_STEP(i) x##i = _mm512_fmadd_ps(x##i, a, b);
    NIBBLE_CHAINS(NIBBLE_STEP)
#undef NIBBLE_STEP
  }
  __m512 sum = _mm512_setzero_ps();
#define NIBBLE_ADD(i) sum = _mm512_add_ps(sum, x##i);
  NIBBLE_CHAINS(NIBBLE_ADD)
#undef NIBBLE_ADD
  return _mm512_cvtss_f32(sum);
}

#if (defined(__clang__) && __clang_major__ >= 14) || (!defined(__clang__) && __GNUC__ >= 12)
#define NIBBLE_BF16_UNITS
// Each adds 2^-20 * 2^-20 twice to the sums.
constexpr short kTinyBf16 = 0x3580;

__attribute__((target("avx512f,avx512bw,avx512bf16"))) float bf16_pair_chains(std::int64_t rounds) {
  __m512bh a = reinterpret_cast<__m512bh>(_mm512_set1_epi16(kTinyBf16));
#define NIBBLE_START(i) __m512 x##i = _mm512_set1_ps(1.0f + 0.0625f * i);
  NIBBLE_CHAINS(NIBBLE_START)
#undef NIBBLE_START
  for (std::int64_t r = 0; r < rounds; ++r) {
#define NIBBLE_STEP(i) x##i = _mm512_dpbf16_ps(x##i, a, a);
    NIBBLE_CHAINS(NIBBLE_STEP)
#undef NIBBLE_STEP
  }
  __m512 sum = _mm512_setzero_ps();
#define NIBBLE_ADD(i) sum = _mm512_add_ps(sum, x##i);
  NIBBLE_CHAINS(NIBBLE_ADD)
#undef NIBBLE_ADD
  return _mm512_cvtss_f32(sum);
}

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr std::int64_t kTileProducts = 4, kTileFlops = kTileProducts * 16 * 16 * 32 * 2;

__attribute__((target("amx-tile,amx-bf16"))) float tile_chains(std::int64_t rounds) {
  static constexpr TileConfig kConfig;  // in memory as it is: GCC 12 drops stores to one on the stack
  _tile_loadconfig(&kConfig);
  alignas(64) std::uint16_t ones[512];
  for (std::uint16_t& v : ones) v = 0x3F80;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, ones, 64);
  _tile_loadd(5, ones, 64);
  _tile_loadd(6, ones, 64);
  _tile_loadd(7, ones, 64);
  for (std::int64_t r = 0; r < rounds; ++r) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  alignas(64) float sums[256];
  _tile_stored(0, sums, 64);
  float sum = sums[0];
  _tile_stored(1, sums, 64);
  sum += sums[0];
  _tile_stored(2, sums, 64);
  sum += sums[0];
  _tile_stored(3, sums, 64);
  sum += sums[0];
  _tile_release();
  return sum;
}
#endif
#endif

#if defined(__aarch64__)
#define NIBBLE_CHAINS(OP) OP(0) OP(1) OP(2) OP(3) OP(4) OP(5) OP(6) OP(7) OP(8) OP(9) OP(10) OP(11)

float neon_chains(std::int64_t rounds) {
  const float32x4_t a = vdupq_n_f32(kShrink), b = vdupq_n_f32(kAdd);
#define NIBBLE_START(i) float32x4_t x##i = vdupq_n_f32(1.0f + 0.0625f * i);
  NIBBLE_CHAINS(NIBBLE_START)
#undef NIBBLE_START
  for (std::int64_t r = 0; r < rounds; ++r) {
#define NIBBLE_STEP(i) x##i = vfmaq_f32(b, x##i, a);
    NIBBLE_CHAINS(NIBBLE_STEP)
#undef NIBBLE_STEP
  }
  float32x4_t sum = vdupq_n_f32(0);
#define NIBBLE_ADD(i) sum = vaddq_f32(sum, x##i);
  NIBBLE_CHAINS(NIBBLE_ADD)
#undef NIBBLE_ADD
  return vgetq_lane_f32(sum, 0);
}
#endif

}  // namespace

std::uint64_t read_sum(const std::uint64_t* data, std::size_t words) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return sum_avx2(data, words);
#endif
  return sum_words(data, words);
}

FloatLoop bf16_loop(std::string_view kernels) {
#if defined(NIBBLE_BF16_UNITS)
  if (kernels == "amx") return {"amx tiles", kTileFlops, tile_chains, 1'000'000};
  if (kernels == "avx512_bf16") return {"avx512 pairs", 2 * kChains * 32, bf16_pair_chains};
#endif
  static_cast<void>(kernels);
  return {"", 0, nullptr};
}

FloatLoop best_float_loop() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {"avx512 fma", 2 * kChains * 16, avx512_chains};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {"avx2 fma", 2 * kChains * 8, avx2_chains};
  }
#elif defined(__aarch64__)
  return {"neon fma", 2 * kChains * 4, neon_chains};
#endif
  return {"portable mul + add", 2 * kChains * 4, portable_chains};
}

}  // namespace nibble::tool
