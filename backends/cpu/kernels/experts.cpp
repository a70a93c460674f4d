#include "backends/cpu/kernels/experts.h"

#include <cstring>

#include "backends/cpu/simd.h"
#include "core/numerics/reduce.h"
#include "core/ops/expert_limits.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

void route(const float* logits, std::int32_t experts, std::int32_t k, bool normalised, float* weights,
           std::int32_t* ids) {
  alignas(64) float z[kMostExperts], p[kMostExperts], chosen[kMostExperts];
  constexpr float kNone = -__builtin_inff();
  float first = kNone;
  for (std::int32_t e = 0; e < experts; ++e) {
    z[e] = logits[e] == logits[e] ? logits[e] : kNone;
    first = num::max(z[e], first);
  }
  for (std::int32_t e = 0; e < experts; ++e) {
    const float v = num::exp(num::sub(z[e], first));
    p[e] = z[e] == first ? 1.0f : v;
  }
  // The best of those behind the one before in (z descending, id ascending).
  float above = 0;
  std::int32_t last = -1;
  for (std::int32_t s = 0; s < k; ++s) {
    std::int32_t best = -1;
    for (std::int32_t e = 0; e < experts; ++e) {
      const bool left = last < 0 || z[e] < above || (z[e] == above && e > last);
      if (left && (best < 0 || z[e] > z[best])) best = e;
    }
    ids[s] = last = best;
    above = z[best];
    chosen[s] = p[best];
  }
  const float total = normalised ? num::tree_sum(chosen, k) : num::tree_sum(p, experts);
  for (std::int32_t s = 0; s < k; ++s) weights[s] = num::div(chosen[s], total);
}

// Over small local blocks, which no pointer can alias.
void add_scaled(const float* x, float w, std::int64_t n, float* y) {
  constexpr std::int64_t kBlock = 64;
  alignas(64) float in[kBlock], out[kBlock];
  std::int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    std::memcpy(in, x + i, sizeof in);
    std::memcpy(out, y + i, sizeof out);
    for (std::int64_t j = 0; j < kBlock; ++j) out[j] = num::fma(w, in[j], out[j]);
    std::memcpy(y + i, out, sizeof out);
  }
  for (; i < n; ++i) y[i] = num::fma(w, x[i], y[i]);
}

constexpr ExpertKernels kKernels{route, add_scaled};

}  // namespace

const ExpertKernels& expert_kernels() {
  return kKernels;
}

}  // namespace nibble::cpu::NIBBLE_ISA
