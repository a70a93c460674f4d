// reduce.h: the one tree for sums outside matrix units (norms, softmax, sampling).
//
// A sum of n terms uses L lanes, L = 32 for n <= 512 and 256 above. Lane j adds the terms i = j,
// j + L, j + 2L, ... in that order, starting from +0; then lanes are folded: for s = L/2, L/4, ... 1
// lane j += lane j + s. A function of n alone: threads, launch size and vector width change nothing.
// Sums of squares add with fma(x, x, lane). Lanes without a term hold +0.
#pragma once

#include "core/numerics/scalar.h"

namespace nibble::num {

constexpr int kTreeShort = 32, kTreeLong = 256, kTreeSwitch = 512;

NIBBLE_HD constexpr int tree_lanes(std::int64_t n) { return n <= kTreeSwitch ? kTreeShort : kTreeLong; }

NIBBLE_HD float tree_fold(float* lanes, int count) {
  for (int s = count / 2; s > 0; s /= 2) {
    for (int j = 0; j < s; ++j) lanes[j] = add(lanes[j], lanes[j + s]);
  }
  return lanes[0];
}

namespace detail {
template <int L, class Step>
NIBBLE_HD float tree_run(std::int64_t n, Step step) {
  float lanes[L];
  for (int j = 0; j < L; ++j) lanes[j] = 0.0f;
  std::int64_t i = 0;
  for (; i + L <= n; i += L) {
    for (int j = 0; j < L; ++j) lanes[j] = step(lanes[j], i + j);
  }
  for (int j = 0; i + j < n; ++j) lanes[j] = step(lanes[j], i + j);
  return tree_fold(lanes, L);
}

// Named and always inlined: a lambda's call operator would be one shared symbol of all instruction sets.
struct SumStep {
  const float* x;
  NIBBLE_HD float operator()(float s, std::int64_t i) const { return add(s, x[i]); }
};
struct SquareStep {
  const float* x;
  NIBBLE_HD float operator()(float s, std::int64_t i) const { return fma(x[i], x[i], s); }
};
}  // namespace detail

// step(sum so far of the lane, index) -> new sum of the lane
template <class Step>
NIBBLE_HD float tree_reduce(std::int64_t n, Step step) {
  return n <= kTreeSwitch ? detail::tree_run<kTreeShort>(n, step) : detail::tree_run<kTreeLong>(n, step);
}

NIBBLE_HD float tree_sum(const float* x, std::int64_t n) {
  return tree_reduce(n, detail::SumStep{x});
}

NIBBLE_HD float tree_sum_squares(const float* x, std::int64_t n) {
  return tree_reduce(n, detail::SquareStep{x});
}

}  // namespace nibble::num
