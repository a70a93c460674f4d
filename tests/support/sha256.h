// sha256.h: FIPS 180-4, for digests in test data.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace nibble::test {

// The constants are the first 32 fractional bits of square and cube roots of the first primes:
// found by search, there is no table to mistype.
inline std::array<std::uint32_t, 64> sha256_constants(int degree) {
  __extension__ using Wide = unsigned __int128;
  std::array<std::uint32_t, 64> result{};
  std::size_t found = 0;
  for (unsigned n = 2; found < result.size(); ++n) {
    bool prime = true;
    for (unsigned d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
    if (!prime) continue;
    std::uint64_t low = 0, high = std::uint64_t{1} << 37;  // floor(root * 2^32)
    while (high - low > 1) {
      const std::uint64_t mid = (low + high) / 2;
      const Wide power = degree == 2 ? Wide{mid} * mid : Wide{mid} * mid * mid;
      (power <= Wide{n} << (32 * degree) ? low : high) = mid;
    }
    result[found++] = static_cast<std::uint32_t>(low);
  }
  return result;
}

inline std::string sha256(std::string_view data) {
  static const auto k = sha256_constants(3);
  static const auto start = sha256_constants(2);
  std::array<std::uint32_t, 8> h{};
  for (std::size_t i = 0; i < 8; ++i) h[i] = start[i];

  std::string padded(data);
  padded += static_cast<char>(0x80);
  while (padded.size() % 64 != 56) padded += '\0';
  for (int shift = 56; shift >= 0; shift -= 8) {
    padded += static_cast<char>((static_cast<std::uint64_t>(data.size()) * 8) >> shift);
  }
  for (std::size_t block = 0; block < padded.size(); block += 64) {
    std::array<std::uint32_t, 64> w{};
    for (std::size_t i = 0; i < 64; ++i) {
      w[i / 4] = w[i / 4] << 8 | static_cast<unsigned char>(padded[block + i]);
    }
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
    }
    auto v = h;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t a = v[0], e = v[4];
      const std::uint32_t t1 = v[7] + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                               ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
      const std::uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) +
                               ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
      v = {t1 + t2, v[0], v[1], v[2], v[3] + t1, v[4], v[5], v[6]};
    }
    for (std::size_t i = 0; i < 8; ++i) h[i] += v[i];
  }
  std::string hex;
  for (const std::uint32_t word : h) {
    for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[(word >> shift) & 15];
  }
  return hex;
}

inline std::string sha256(std::span<const std::byte> data) {
  return sha256(std::string_view(reinterpret_cast<const char*>(data.data()), data.size()));
}

}  // namespace nibble::test
