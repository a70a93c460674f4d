// rounding.cpp: num::float_to_bf16, num::activation_to_f16 and num::weight_to_f16.   cost  8 bytes an element
//   for bf16, 12 for f16 -> bandwidth bound where there are lanes of integers
#include "backends/cpu/kernels/rounding.h"

#include "backends/cpu/kernels/codec_lanes.h"
#include "core/numerics/row_scale.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

#if defined(NIBBLE_ISA_avx2) || defined(NIBBLE_ISA_avx512)

template <class F>
NIBBLE_INLINE void each(float* row, std::int64_t cols, F f) {
  std::int64_t i = 0;
  for (; i + kLanes <= cols; i += kLanes) store(row + i, f(load(row + i)));
  if (i < cols) store_part(row + i, f(load_part(row + i, cols - i)), cols - i);
}

struct ThroughBf16 {
  NIBBLE_INLINE F32x16 operator()(F32x16 x) const { return through_bf16(x); }
};
// 2^15 * 2^113 is the infinity that num::activation_to_f16 makes of it.
struct ThroughF16 {
  F32x16 down, up;
  NIBBLE_INLINE F32x16 operator()(F32x16 x) const { return mul(through_f16(mul(x, down)), up); }
};

NIBBLE_INLINE F32x16 finite_magnitude(F32x16 x) {
  return where_less(abs(x), set1(__builtin_inff()), abs(x), zero());
}

void f16_columns(float* panel, std::int64_t rows, const float* down) {
  const F32x16 by = load(down);
  for (std::int64_t r = 0; r < rows; ++r) store(panel + r * kLanes, through_f16(mul(load(panel + r * kLanes), by)));
}

void bf16(float* row, std::int64_t cols) {
  each(row, cols, ThroughBf16{});
}

std::int32_t f16(float* row, std::int64_t cols) {
  F32x16 most[2] = {zero(), zero()};
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= cols; i += 2 * kLanes) {
    most[0] = max(most[0], finite_magnitude(load(row + i)));
    most[1] = max(most[1], finite_magnitude(load(row + i + kLanes)));
  }
  for (; i < cols; i += kLanes) most[0] = max(most[0], finite_magnitude(load_part(row + i, cols - i)));
  const int e = num::activation_exponent(num::bit_cast<std::uint32_t>(largest(max(most[0], most[1]))));
  each(row, cols, ThroughF16{set1(num::power_of_two(-e)), set1(num::power_of_two(e))});
  return e;
}

#else

void bf16(float* row, std::int64_t cols) {
  for (std::int64_t c = 0; c < cols; ++c) row[c] = num::bf16_to_float(num::float_to_bf16(row[c]));
}

void f16_columns(float* panel, std::int64_t rows, const float* down) {
  for (std::int64_t i = 0; i < rows * kLanes; ++i) {
    panel[i] = num::f16_to_float(num::float_to_f16(num::mul(panel[i], down[i % kLanes])));
  }
}

std::int32_t f16(float* row, std::int64_t cols) {
  std::uint32_t amax = 0;
  for (std::int64_t c = 0; c < cols; ++c) {
    const std::uint32_t m = num::finite_magnitude(row[c]);
    amax = m > amax ? m : amax;
  }
  const int e = num::activation_exponent(amax);
  for (std::int64_t c = 0; c < cols; ++c) {
    row[c] = num::row_f16_to_float(num::activation_to_f16(row[c], e), e);
  }
  return e;
}

#endif

void column_powers(const float* panel, std::int64_t rows, float* down, float* up) {
  std::uint32_t most[kLanes] = {};
  for (std::int64_t r = 0; r < rows; ++r) {
    for (int v = 0; v < kLanes; ++v) {
      const std::uint32_t m = num::finite_magnitude(panel[r * kLanes + v]);
      most[v] = m > most[v] ? m : most[v];
    }
  }
  for (int v = 0; v < kLanes; ++v) {
    const int e = num::weight_exponent(most[v]);
    down[v] = num::power_of_two(-e);
    up[v] = num::power_of_two(e);
  }
}

constexpr RoundingKernels kKernels{bf16, f16, column_powers, f16_columns};

}  // namespace

const RoundingKernels& rounding_kernels() {
  return kKernels;
}

}  // namespace nibble::cpu::NIBBLE_ISA
