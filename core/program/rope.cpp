#include "core/program/rope.h"

#include <cmath>
#include <cstdio>
#include <numbers>

namespace nibble {
namespace {

double scaled(const RopeScaling& s, double frequency) {
  switch (s.kind) {
    case RopeScaling::Kind::none:
      return frequency;
    case RopeScaling::Kind::linear:
      return frequency / s.factor;
    case RopeScaling::Kind::llama3: {
      const double waves = s.original * frequency / (2 * std::numbers::pi);
      if (waves < s.low) return frequency / s.factor;
      if (waves > s.high) return frequency;
      const double kept = (waves - s.low) / (s.high - s.low);
      return (1 - kept) * frequency / s.factor + kept * frequency;
    }
  }
  return frequency;
}

}  // namespace

std::string rope_scaling_text(const RopeScaling& s) {
  char text[96] = "none";
  if (s.kind == RopeScaling::Kind::linear)
    std::snprintf(text, sizeof text, "linear, factor %g", s.factor);
  if (s.kind == RopeScaling::Kind::llama3) {
    std::snprintf(text, sizeof text, "llama3, factor %g beyond %g positions", s.factor, s.original);
  }
  return text;
}

std::vector<float> rope_frequencies(const RopeConfig& config) {
  std::vector<float> out(static_cast<std::size_t>(config.rotary_dim / 2));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double plain = std::pow(config.theta, -2.0 * static_cast<double>(i) / config.rotary_dim);
    out[i] = static_cast<float>(scaled(config.scaling, plain));
  }
  return out;
}

std::vector<float> rope_table(const RopeConfig& config, std::int64_t positions) {
  const std::vector<float> frequencies = rope_frequencies(config);
  const std::size_t pairs = frequencies.size(), width = static_cast<std::size_t>(config.rotary_dim);
  std::vector<float> table(static_cast<std::size_t>(positions) * width);
  for (std::size_t i = 0; i < pairs; ++i) {
    for (std::int64_t p = 0; p < positions; ++p) {
      const float angle = static_cast<float>(p) * frequencies[i];
      float* row = table.data() + static_cast<std::size_t>(p) * width;
      row[i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      row[pairs + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  return table;
}

}  // namespace nibble
