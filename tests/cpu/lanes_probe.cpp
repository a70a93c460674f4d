#include "tests/cpu/lanes_probe.h"

#include "backends/cpu/kernels/lanes.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

template <class F>
NIBBLE_INLINE void each(const float* x, std::int64_t n, float* y, F f) {
  for (std::int64_t i = 0; i < n; i += kLanes) store(y + i, f(load(x + i)));
}

constexpr LaneFunctions kFunctions{
    [](const float* x, std::int64_t n, float* y) { each(x, n, y, [](F32x16 v) { return exp(v); }); },
    [](const float* x, std::int64_t n, float* y) { each(x, n, y, [](F32x16 v) { return silu(v); }); },
    [](const float* x, std::int64_t n, float* y) { each(x, n, y, [](F32x16 v) { return sigmoid(v); }); },
    [](const float* x, std::int64_t n, float* y) { each(x, n, y, [](F32x16 v) { return softplus(v); }); },
    tree<false>,
    tree<true>,
};

}  // namespace

const LaneFunctions& lane_functions() {
  return kFunctions;
}

}  // namespace nibble::cpu::NIBBLE_ISA
