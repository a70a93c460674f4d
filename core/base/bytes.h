// bytes.h: little-endian reads from untrusted memory, checked arithmetic on sizes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>

namespace nibble {

using Bytes = std::span<const std::byte>;

inline std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) {
  std::uint64_t r;
  return __builtin_mul_overflow(a, b, &r) ? std::nullopt : std::optional(r);
}

inline std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t r;
  return __builtin_add_overflow(a, b, &r) ? std::nullopt : std::optional(r);
}

// T is trivially copyable; the caller has checked that `at + sizeof(T)` lies inside.
template <class T>
T load_le(Bytes bytes, std::size_t at) {
  static_assert(std::endian::native == std::endian::little);
  T v;
  std::memcpy(&v, bytes.data() + at, sizeof v);
  return v;
}

}  // namespace nibble
