// sha256.h: SHA-256 (FIPS 180-4) for comparing data with published digests.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace nibble::test {

namespace sha256_detail {

// The first 32 bits of the fraction of the square or cube root of the first primes.
inline std::vector<std::uint32_t> root_fractions(int count, bool cube) {
  std::vector<std::uint32_t> out;
  for (int n = 2; static_cast<int>(out.size()) < count; ++n) {
    bool prime = true;
    for (int d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
    if (!prime) continue;
    const long double root =
        cube ? std::cbrt(static_cast<long double>(n)) : std::sqrt(static_cast<long double>(n));
    out.push_back(static_cast<std::uint32_t>((root - std::floor(root)) * 0x1p32L));
  }
  return out;
}

inline void compress(std::array<std::uint32_t, 8>& h, const std::uint8_t* block) {
  static const std::vector<std::uint32_t> k = root_fractions(64, true);
  std::array<std::uint32_t, 64> w{};
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 4; ++j) w[i] = w[i] << 8 | block[4 * i + j];
  }
  for (int i = 16; i < 64; ++i) {
    const std::uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  auto s = h;
  for (int i = 0; i < 64; ++i) {
    const std::uint32_t up = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
    const std::uint32_t t1 = s[7] + up + ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
    const std::uint32_t low = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
    const std::uint32_t t2 = low + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    s = {t1 + t2, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
  }
  for (int i = 0; i < 8; ++i) h[i] += s[i];
}

}  // namespace sha256_detail

// Hexadecimal, lower case.
inline std::string sha256(std::span<const std::byte> data) {
  std::array<std::uint32_t, 8> h{};
  const auto start = sha256_detail::root_fractions(8, false);
  for (int i = 0; i < 8; ++i) h[i] = start[i];
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(data.data());
  std::size_t at = 0;
  for (; at + 64 <= data.size(); at += 64) sha256_detail::compress(h, bytes + at);
  std::array<std::uint8_t, 128> tail{};
  const std::size_t rest = data.size() - at, length = rest < 56 ? 64 : 128;
  for (std::size_t i = 0; i < rest; ++i) tail[i] = bytes[at + i];
  tail[rest] = 0x80;
  for (int i = 0; i < 8; ++i) {
    tail[length - 1 - i] = static_cast<std::uint8_t>(std::uint64_t{data.size()} * 8 >> (8 * i));
  }
  for (std::size_t i = 0; i < length; i += 64) sha256_detail::compress(h, tail.data() + i);
  std::string text;
  for (const std::uint32_t word : h) {
    for (int i = 28; i >= 0; i -= 4) text += "0123456789abcdef"[word >> i & 15];
  }
  return text;
}

}  // namespace nibble::test
