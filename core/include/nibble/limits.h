// limits.h: the ends of what options may be; beyond them is Error(invalid_argument). Threads have
// one that depends on the machine: 256, or twice its processors where that is more.
#pragma once

#include <cstdint>

namespace nibble::limits {

inline constexpr int max_sequences = 4096;
inline constexpr std::int64_t kv_tokens = std::int64_t{1} << 32;
// A multiple of 64; for more than one sequence the least is higher (max_sequences + 127).
inline constexpr int least_step_tokens = 128, step_tokens = 1 << 20;
inline constexpr int max_drafts = 15;

inline constexpr float temperature = 100;
inline constexpr float least_repetition_penalty = 0.01f, repetition_penalty = 100;

}  // namespace nibble::limits
