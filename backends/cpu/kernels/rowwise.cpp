// rowwise.cpp: elementwise loops run over small local blocks, which no pointer can alias, so that
// the compiler makes vectors of the num:: functions even where an output is its own input.
#include "backends/cpu/kernels/rowwise.h"

#include "backends/cpu/simd.h"
#include "core/numerics/reduce.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

constexpr std::int64_t kBlock = 64;

template <class F>
NIBBLE_INLINE void each(const float* a, const float* b, std::int64_t n, float* y, F f) {
  alignas(64) float in_a[kBlock], in_b[kBlock], out[kBlock];
  std::int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    std::memcpy(in_a, a + i, sizeof in_a);
    std::memcpy(in_b, b + i, sizeof in_b);
    for (std::int64_t j = 0; j < kBlock; ++j) out[j] = f(in_a[j], in_b[j]);
    std::memcpy(y + i, out, sizeof out);
  }
  for (; i < n; ++i) y[i] = f(a[i], b[i]);
}

struct Sum {
  NIBBLE_HD float operator()(float a, float b) const { return num::add(a, b); }
};
struct SiluTimes {
  NIBBLE_HD float operator()(float gate, float up) const { return num::mul(num::silu(gate), up); }
};
struct TimesSigmoid {
  NIBBLE_HD float operator()(float x, float gate) const { return num::mul(x, num::sigmoid(gate)); }
};
struct TimesSilu {
  NIBBLE_HD float operator()(float x, float z) const { return num::mul(x, num::silu(z)); }
};

void add_rows(const float* a, const float* b, std::int64_t n, float* y) {
  each(a, b, n, y, Sum{});
}
void swiglu(const float* gate, const float* up, std::int64_t n, float* y) {
  each(gate, up, n, y, SiluTimes{});
}
void sigmoid_gate(const float* x, const float* gate, std::int64_t n, float* y) {
  each(x, gate, n, y, TimesSigmoid{});
}

// num::tree_sum_squares, 32 lanes at a time in registers.
NIBBLE_INLINE float squares(const float* x, std::int64_t n) {
  alignas(64) float lanes[num::kTreeLong];
  const int count = num::tree_lanes(n);
  const std::int64_t whole = n / count * count;
  for (int lane = 0; lane < count; lane += 2 * kLanes) {
    F32x16 a = zero(), b = zero();
    for (std::int64_t i = lane; i < whole; i += count) {
      const F32x16 v = load(x + i), w = load(x + i + kLanes);
      a = fma(v, v, a);
      b = fma(w, w, b);
    }
    store(lanes + lane, a);
    store(lanes + lane + kLanes, b);
  }
  for (std::int64_t i = whole; i < n; ++i)
    lanes[i - whole] = num::fma(x[i], x[i], lanes[i - whole]);
  return num::tree_fold(lanes, count);
}

NIBBLE_INLINE float factor(const float* x, std::int64_t n, float eps) {
  const float inverse = static_cast<float>(1.0 / static_cast<double>(n));
  return num::rsqrt(num::add(num::mul(squares(x, n), inverse), eps));
}

void rms_norm(const float* x, const float* w, std::int64_t n, float eps, float* y) {
  const float f = factor(x, n, eps);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, mul(mul(load(x + i), set1(f)), load(w + i)));
  for (; i < n; ++i) y[i] = num::mul(num::mul(x[i], f), w[i]);
}

void gated_rms_norm(const float* x, const float* z, const float* w, std::int64_t n, float eps,
                    float* y) {
  const float f = factor(x, n, eps);
  alignas(64) float normed[kBlock];
  for (std::int64_t i = 0; i < n; i += kBlock) {
    const std::int64_t count = n - i < kBlock ? n - i : kBlock;
    for (std::int64_t j = 0; j < count; ++j) normed[j] = num::mul(num::mul(x[i + j], f), w[i + j]);
    each(normed, z + i, count, y + i, TimesSilu{});
  }
}

constexpr RowwiseKernels kKernels{add_rows, swiglu, sigmoid_gate, rms_norm, gated_rms_norm};

}  // namespace

const RowwiseKernels& rowwise_kernels() {
  return kKernels;
}

}  // namespace nibble::cpu::NIBBLE_ISA
