// roof_loops.h: the innermost loops of roof.cpp, one for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace nibble::tool {

constexpr std::size_t kReadWords = 64;  // words in a round of read_sum

// Sum of the words; `words` is a multiple of kReadWords.
std::uint64_t read_sum(const std::uint64_t* data, std::size_t words);

struct FloatLoop {
  const char* name;
  std::int64_t flops_per_round;
  float (*run)(std::int64_t rounds);  // independent chains in registers; the result is over 0
  std::int64_t rounds = 20'000'000;    // some tenths of a second
};
FloatLoop best_float_loop();
// The processor's unit for bf16 that these kernels use ("amx", "avx512_bf16"); run is null where they use none. The
// system has given the unit's registers to the process.
FloatLoop bf16_loop(std::string_view kernels);

}  // namespace nibble::tool
