// fused_golden_test.cu: the emulating functions, compiled for the host, against sums by big integers. Needs no card.
#include <gtest/gtest.h>

#include <cstring>

#include "backends/cuda/device/mma.cuh"
#include "backends/cuda/device/mma_f16.cuh"
#include "backends/cuda/device/mma_fp4.cuh"
#include "tests/cuda/fused_golden.h"
#include "tests/support/buffers.h"

namespace nibble::test {
namespace {

template <class Sum>
void expect_all(const FusedGolden& g, Sum sum) {
  for (int at = 0; at < g.blocks() * 256; ++at) {
    const int block = at / 256, i = at / 16 % 16, j = at % 16;
    ASSERT_TRUE(same_bits(sum(block, i, j, g.addend(block, i, j)), g.wanted(block, i, j))) << at;
  }
}
template <int N>
struct Words {
  explicit Words(const std::uint8_t* bytes) { std::memcpy(of, bytes, sizeof of); }
  std::uint32_t of[N];
};

TEST(EmulatedSums, EqualBigIntegers) {
  const FusedGolden bf16("bf16_16_25"), f16("f16_4_23"), fp4("mxf4nvf4_64_35");
  EXPECT_GE(bf16.blocks() + f16.blocks(), 36);
  expect_all(bf16, [&](int block, int i, int j, float c) {
    return cuda::fused_dot16_bf16(Words<8>(bf16.row(bf16.a, block, i)).of, Words<8>(bf16.row(bf16.b, block, j)).of, c);
  });
  expect_all(f16, [&](int block, int i, int j, float c) {
    return cuda::fused_dot4_f16(Words<2>(f16.row(f16.a, block, i)).of, Words<2>(f16.row(f16.b, block, j)).of, c);
  });
  expect_all(fp4, [&](int block, int i, int j, float c) {
    return cuda::fused_dot64_fp4(Words<8>(fp4.row(fp4.a, block, i)).of, Words<8>(fp4.row(fp4.b, block, j)).of,
                                 Words<1>(fp4.row(fp4.a_scales, block, i)).of[0],
                                 Words<1>(fp4.row(fp4.b_scales, block, j)).of[0], c);
  });
}

}  // namespace
}  // namespace nibble::test
