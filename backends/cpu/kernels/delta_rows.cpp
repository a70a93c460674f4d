// delta_rows.cpp: what comes before the delta rule, row by row: convolution, silu, l2 norm, gates.
//   cost  conv: kernel fma, one exp and one div an element; arithmetic bound
#include "backends/cpu/kernels/sequence_table.h"
#include "backends/cpu/kernels/tile.h"

namespace nibble::cpu::NIBBLE_ISA {

void conv(const ConvTask& t) {
  for (int c = 0; c < t.width; c += kLanes) {
    const int count = t.width - c;
    F32x16 acc = zero();
    for (int j = 0; j < t.kernel; ++j) {
      const F32x16 tap = load_part(t.taps + j * t.taps_stride + c, count);
      const F32x16 raw = t.raw[j] ? load_part(t.raw[j] + c, count) : zero();
      acc = fma(tap, raw, acc);
    }
    store_part(t.y + c, silu(acc), count);
  }
  if (!t.normalise) return;
  const F32x16 r = set1(num::rsqrt(num::add(tree<true>(t.y, t.width), 1e-6f)));
  const F32x16 scale = set1(t.scale);
  for (int c = 0; c < t.width; c += kLanes) {
    const int count = t.width - c;
    // k's scale is 1 and changes nothing
    store_part(t.y + c, mul(mul(load_part(t.y + c, count), r), scale), count);
  }
}

void gates(const GatesTask& t) {
  for (std::int64_t r = 0; r < t.rows; ++r) {
    const float *a = t.a + r * t.a_stride, *b = t.b + r * t.b_stride;
    float *g = t.g + r * t.g_stride, *beta = t.beta + r * t.beta_stride;
    for (std::int64_t h = 0; h < t.heads; h += kLanes) {
      const std::int64_t n = t.heads - h;
      const F32x16 at = add(load_part(a + h, n), load_part(t.dt_bias + h, n));
      store_part(g + h, mul(load_part(t.neg_exp_a + h, n), softplus(at)), n);
      store_part(beta + h, sigmoid(load_part(b + h, n)), n);
    }
  }
}

}  // namespace nibble::cpu::NIBBLE_ISA
