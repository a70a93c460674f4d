// fused_golden.h: tests/data/fused, sums of products by big integers, as blocks that fill matrix instructions: 16 rows
// of a, 16 rows of b, and for each pair of them a c and the result.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/numerics/codecs.h"

namespace nibble::test {

struct FusedGolden {
  explicit FusedGolden(const std::string& family);
  int blocks() const { return static_cast<int>(result.size() / 256); }
  std::size_t row_bytes() const { return a.size() / static_cast<std::size_t>(blocks()) / 16; }
  const std::uint8_t* row(const std::vector<std::uint8_t>& of, int block, int i) const {
    return of.data() + (static_cast<std::size_t>(block) * 16 + static_cast<std::size_t>(i)) * (of.size() / blocks() / 16);
  }
  float addend(int block, int i, int j) const {
    return num::bit_cast<float>(c[static_cast<std::size_t>(block * 16 + (i + j) % 16)]);
  }
  float wanted(int block, int i, int j) const {
    return num::bit_cast<float>(result[static_cast<std::size_t>(block * 256 + i * 16 + j)]);
  }

  std::vector<std::uint8_t> a, b, a_scales, b_scales;
  std::vector<std::uint32_t> c, result;
};

}  // namespace nibble::test
