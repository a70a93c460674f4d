// float_env.h: round to nearest, no flush to zero, whatever the embedding program has set.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace nibble {

// Programs linked with fast-math start-up code run with FTZ and DAZ on; bits would depend on it.
class FloatEnv {
 public:
#if defined(__SSE2__)
  FloatEnv() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~FloatEnv() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  // "memory": a compiler moves loads and stores, and the arithmetic between them, over other assembly.
  FloatEnv() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_)::"memory");
    __asm__ volatile("msr fpcr, %0" ::"r"(std::uint64_t{0}) : "memory");
  }
  ~FloatEnv() { __asm__ volatile("msr fpcr, %0" ::"r"(saved_) : "memory"); }

 private:
  std::uint64_t saved_ = 0;
#else
#error "state how this processor's floating-point control word is set"
#endif
 public:
  FloatEnv(const FloatEnv&) = delete;
  FloatEnv& operator=(const FloatEnv&) = delete;
};

}  // namespace nibble
