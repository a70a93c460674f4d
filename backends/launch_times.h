// launch_times.h: samples of a measurement to their median and spread.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "nibble/op_bench.h"

namespace nibble {

inline double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

// At least one sample.
inline LaunchTimes times_of(std::vector<double> samples) {
  LaunchTimes times;
  times.samples = std::move(samples);
  std::vector<double> sorted = times.samples;
  std::sort(sorted.begin(), sorted.end());
  times.median = quantile(sorted, 0.5);
  times.spread = (quantile(sorted, 0.75) - quantile(sorted, 0.25)) / 2;
  return times;
}

}  // namespace nibble
