// rope.h: the angles of rotary embeddings, and how models made for long contexts change them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

// What becomes of a pair's frequency f; its wavelength is 2 pi / f.
struct RopeScaling {
  enum class Kind : std::uint8_t {
    none,
    linear,  // f / factor
    llama3,  // wavelengths above original / low: f / factor; below original / high: f; between: a
             // mixture
  };
  Kind kind = Kind::none;
  double factor = 1;  // linear and llama3
  double low = 1,
         high = 4;      // of llama3: how many waves the original context holds at the band's ends
  double original = 0;  // llama3: positions of the context before it was extended
  bool operator==(const RopeScaling&) const = default;
};
// "none", "linear, factor 2", "llama3, factor 8 beyond 8192": for people.
std::string rope_scaling_text(const RopeScaling& scaling);

struct RopeConfig {
  double theta = 1e4;
  std::int32_t rotary_dim = 0;
  RopeScaling scaling = {};
  bool operator==(const RopeConfig&) const = default;
};

// theta^(-2i / rotary_dim), scaled: computed in double, rounded once.
std::vector<float> rope_frequencies(const RopeConfig& config);

// [positions, rotary_dim]: cos of all pairs' angles, then sin. angle = position * frequency in
// float32, as the reference computes it.
std::vector<float> rope_table(const RopeConfig& config, std::int64_t positions);

}  // namespace nibble
