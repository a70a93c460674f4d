// rowwise.cpp: elementwise ops and norms of one row.   cost  add 12 bytes an element -> bandwidth bound;
//   silu and sigmoid 17 operations and one division an element -> arithmetic bound in the caches
#include "backends/cpu/kernels/rowwise.h"

#include "backends/cpu/kernels/lanes.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

// y = f(a, b, index); an output may be one of the inputs.
template <class F>
NIBBLE_INLINE void each(const float* a, const float* b, std::int64_t n, float* y, F f) {
  constexpr int kAtOnce = 4;  // more in flight than one by one
  std::int64_t i = 0;
  for (; i + kAtOnce * kLanes <= n; i += kAtOnce * kLanes) {
    F32x16 out[kAtOnce];
    NIBBLE_UNROLL
    for (int j = 0; j < kAtOnce; ++j) out[j] = f(load(a + i + j * kLanes), load(b + i + j * kLanes));
    NIBBLE_UNROLL
    for (int j = 0; j < kAtOnce; ++j) store(y + i + j * kLanes, out[j]);
  }
  for (; i + kLanes <= n; i += kLanes) store(y + i, f(load(a + i), load(b + i)));
  if (i < n) store_part(y + i, f(load_part(a + i, n - i), load_part(b + i, n - i)), n - i);
}

struct Sum {
  NIBBLE_INLINE F32x16 operator()(F32x16 a, F32x16 b) const { return add(a, b); }
};
struct SiluTimes {
  NIBBLE_INLINE F32x16 operator()(F32x16 gate, F32x16 up) const { return mul(silu(gate), up); }
};
struct TimesSigmoid {
  NIBBLE_INLINE F32x16 operator()(F32x16 x, F32x16 gate) const { return mul(x, sigmoid(gate)); }
};
struct Normed {
  F32x16 factor;
  NIBBLE_INLINE F32x16 operator()(F32x16 x, F32x16 w) const { return mul(mul(x, factor), w); }
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

NIBBLE_INLINE F32x16 factor(const float* x, std::int64_t n, float eps) {
  const float inverse = static_cast<float>(1.0 / static_cast<double>(n));
  return set1(num::rsqrt(num::add(num::mul(tree<true>(x, n), inverse), eps)));
}

void rms_norm(const float* x, const float* w, std::int64_t n, float eps, float* y) {
  each(x, w, n, y, Normed{factor(x, n, eps)});
}

void gated_rms_norm(const float* x, const float* z, const float* w, std::int64_t n, float eps,
                    float* y) {
  const Normed normed{factor(x, n, eps)};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(y + i, mul(normed(load(x + i), load(w + i)), silu(load(z + i))));
  }
  if (const std::int64_t left = n - i; left > 0) {
    const F32x16 scaled = normed(load_part(x + i, left), load_part(w + i, left));
    store_part(y + i, mul(scaled, silu(load_part(z + i, left))), left);
  }
}

constexpr RowwiseKernels kKernels{add_rows, swiglu, sigmoid_gate, rms_norm, gated_rms_norm};

}  // namespace

const RowwiseKernels& rowwise_kernels() {
  return kKernels;
}

}  // namespace nibble::cpu::NIBBLE_ISA
