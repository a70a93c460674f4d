// arena_floats.h: sums of block sizes that cannot overflow, and the blocks themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "core/base/bytes.h"
#include "nibble/error.h"

namespace nibble::cpu {

constexpr std::int64_t kMaxFloats = std::int64_t{1} << 58;

// Product of non-negative factors, rounded up to whole cache lines of 16 floats.
inline std::int64_t block_floats(std::initializer_list<std::int64_t> factors, const char* what) {
  std::uint64_t n = 1;
  for (const std::int64_t f : factors) {
    const auto next = f < 0 ? std::nullopt : checked_mul(n, static_cast<std::uint64_t>(f));
    if (!next || *next > static_cast<std::uint64_t>(kMaxFloats)) {
      throw Error(ErrorCode::out_of_memory,
                  std::string("[cpu state] ") + what + ": its size is beyond 2^60 bytes");
    }
    n = *next;
  }
  return static_cast<std::int64_t>((n + 15) / 16 * 16);
}

inline std::int64_t sum_floats(std::int64_t a, std::int64_t b, const char* what) {
  if (a > kMaxFloats - b) {
    throw Error(ErrorCode::out_of_memory,
                std::string("[cpu state] ") + what + ": their size is beyond 2^60 bytes");
  }
  return a + b;
}

// Throws unless memory is aligned and large enough.
inline float* arena_start(std::span<std::byte> memory, std::uint64_t needed, const char* what) {
  if (memory.size() < needed || reinterpret_cast<std::uintptr_t>(memory.data()) % 64 != 0) {
    throw Error(ErrorCode::invalid_argument,
                std::string("[cpu state] ") + what + ": expected " + std::to_string(needed) +
                    " bytes aligned to 64, got " + std::to_string(memory.size()) + " at " +
                    std::to_string(reinterpret_cast<std::uintptr_t>(memory.data()) % 64) +
                    " past a multiple");
  }
  return reinterpret_cast<float*>(memory.data());
}

}  // namespace nibble::cpu
