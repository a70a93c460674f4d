// flush_mode.h: the arithmetic of core/numerics/bf16_order.h on sixteen lanes.
//
// On x86 the processor's own mode flushes; functions that compute in it are not inlined into those that enter it,
// since compilers know nothing of modes. Elsewhere the results are looked at.
#pragma once

#include "backends/cpu/simd.h"
#include "core/numerics/bf16_order.h"

namespace nibble::cpu::NIBBLE_ISA {

#if defined(NIBBLE_ISA_avx2) || defined(NIBBLE_ISA_avx512)

class FlushMode {
 public:
  NIBBLE_INLINE FlushMode() : saved_(_mm_getcsr()) {
    _mm_setcsr(saved_ | 0x8040u);  // FTZ and DAZ
    __asm__ volatile("" ::: "memory");
  }
  NIBBLE_INLINE ~FlushMode() {
    __asm__ volatile("" ::: "memory");
    _mm_setcsr(saved_);
    __asm__ volatile("" ::: "memory");
  }
  FlushMode(const FlushMode&) = delete;
  FlushMode& operator=(const FlushMode&) = delete;

 private:
  unsigned saved_;
};

// Only in FlushMode.
NIBBLE_INLINE F32x16 fma_flush(F32x16 a, F32x16 b, F32x16 c) { return fma(a, b, c); }
NIBBLE_INLINE F32x16 add_flush(F32x16 a, F32x16 b) { return add(a, b); }
constexpr bool kModeFlushesOperands = true;

#else

struct FlushMode {
  FlushMode() {}
};

NIBBLE_INLINE bool any_small(F32x16 r) {
  float v[kLanes];
  store(v, r);
  std::uint32_t small = 0;
  for (int i = 0; i < kLanes; ++i) {
    const std::uint32_t magnitude = num::bit_cast<std::uint32_t>(v[i]) & 0x7FFFFFFFu;
    small |= magnitude - 1u < 0x00800000u ? 1u : 0u;  // up to 2^-126, zero not
  }
  return small != 0;
}
NIBBLE_INLINE F32x16 fma_flush(F32x16 a, F32x16 b, F32x16 c) {
  const F32x16 r = fma(a, b, c);
  if (__builtin_expect(!any_small(r), 1)) return r;
  float x[kLanes], y[kLanes], z[kLanes];
  store(x, a);
  store(y, b);
  store(z, c);
  for (int i = 0; i < kLanes; ++i) z[i] = num::fma_flush(x[i], y[i], z[i]);
  return load(z);
}
NIBBLE_INLINE F32x16 add_flush(F32x16 a, F32x16 b) {
  float v[kLanes];
  store(v, add(a, b));
  for (int i = 0; i < kLanes; ++i) v[i] = num::flush(v[i]);
  return load(v);
}
constexpr bool kModeFlushesOperands = false;

#endif

}  // namespace nibble::cpu::NIBBLE_ISA
