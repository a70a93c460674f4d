// sample.h: the loops over a whole row of logits, one table for each instruction set.
#pragma once

#include <cstdint>

#include "backends/cpu/isa.h"

namespace nibble::cpu {

constexpr std::int64_t kSampleBlock = 256;  // logits that share one maximum

struct SampleKernels {
  // Lowest index of the largest; NaN counts as -inf.
  std::int64_t (*argmax)(const float* logits, std::int64_t n);
  // z = logits with NaN as -inf, -0 as +0 and, where counts > 0, the penalty; maxima of each block.
  // No counts: no penalty.
  void (*condition)(const float* logits, const std::int32_t* counts, float penalty, std::int64_t n,
                    float* z, float* block_max);
  // Keys of all z >= threshold by ascending id; out has room for n + 1.
  std::int64_t (*gather)(const float* z, const float* block_max, float threshold, std::int64_t n,
                         std::uint64_t* out);
  // p = exp((z - z_first) / temperature), exactly 1 where z equals z_first.
  void (*probabilities)(const std::uint64_t* keys, std::int64_t n, float z_first, float temperature,
                        float* p);
  // The largest logit and the tree sum of exp(z - largest).
  void (*sum_exp)(const float* logits, std::int64_t n, float* largest, float* sum);
};

NIBBLE_ON_EACH_ISA(const SampleKernels& sample_kernels();)

// A candidate as one integer whose ascending order is (logit descending, id ascending).
// Logits are neither NaN nor -0.
inline __attribute__((always_inline)) std::uint64_t candidate_key(float z, std::int64_t id) {
  std::uint32_t u;
  __builtin_memcpy(&u, &z, sizeof u);
  u ^= (u >> 31) != 0 ? 0u : 0x7FFFFFFFu;
  return static_cast<std::uint64_t>(u) << 32 | static_cast<std::uint32_t>(id);
}

inline __attribute__((always_inline)) float candidate_logit(std::uint64_t key) {
  std::uint32_t u = static_cast<std::uint32_t>(key >> 32);
  u ^= (u >> 31) != 0 ? 0u : 0x7FFFFFFFu;
  float z;
  __builtin_memcpy(&z, &u, sizeof z);
  return z;
}

inline __attribute__((always_inline)) std::int32_t candidate_id(std::uint64_t key) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(key));
}

}  // namespace nibble::cpu
