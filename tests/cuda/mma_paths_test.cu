// mma_paths_test.cu: the wrappers of m8n8k4, of the block-scaled m16n8k64 and of the e2m1 conversion: emulation
// against the text in doubles on the host and on the device, and the native instruction where there is one.
#include <gtest/gtest.h>

#include "backends/cuda/device/e2m1.cuh"
#include "backends/cuda/device/mma_f16.cuh"
#include "tests/cuda/device_buffer.h"
#include "tests/cuda/fused_golden.h"
#include "tests/cuda/reference.h"
#include "tests/support/buffers.h"

namespace nibble::test {
namespace {

using cuda::MmaPath;

// One m8n8k4 of a warp: four quad-pairs, each A [8, 4], B [8 columns, 4], C [8, 8].
struct Operands4 {
  std::uint16_t a[4][8][4], b[4][8][4];
  float c[4][8][8];
};
struct Results4 {
  float d[4][8][8];
};

constexpr int kSorts = 6;

std::uint16_t f16_element(std::size_t sort, Hash& random) {
  const std::uint32_t r = random();
  switch (sort) {
    case 0:
      return num::float_to_f16(random.value(-4, 4));
    case 1:
      return num::float_to_f16(random.value(-24, 15));
    case 2:  // zeros of both signs
      return r % 3 == 0 ? static_cast<std::uint16_t>(r >> 16 & 0x8000u) : num::float_to_f16(random.value(-14, 10));
    case 3:  // subnormals
      return static_cast<std::uint16_t>(r >> 8 & 0x83FFu);
    case 4:  // few values, so that sums cancel
      return num::float_to_f16(r % 2 == 0 ? 1.5f : -1.5f);
    default:  // any, inf and NaN too
      return static_cast<std::uint16_t>(r);
  }
}
float accumulator(std::size_t sort, Hash& random) {
  const std::uint32_t r = random();
  if (r % 4 == 0) return num::bit_cast<float>(r & 0x80000000u);
  if (sort == 5) return num::bit_cast<float>(random());
  if (sort == 3) return r % 2 == 0 ? num::bit_cast<float>(r & 0x807FFFFFu) : random.value(-126, -20);
  if (sort == 1) return random.value(-60, 40);
  return random.value(-10, 10);
}

std::vector<Operands4> operands4(std::size_t count) {
  std::vector<Operands4> all(count);
  Hash random{7};
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t sort = i % kSorts;
    for (int q = 0; q < 4; ++q) {
      for (auto& row : all[i].a[q]) for (auto& v : row) v = f16_element(sort, random);
      for (auto& col : all[i].b[q]) for (auto& v : col) v = f16_element(sort, random);
      for (auto& row : all[i].c[q]) for (auto& v : row) v = accumulator(sort, random);
    }
  }
  return all;
}

__device__ std::uint32_t pair_at(const std::uint16_t* at) {
  return at[0] | static_cast<std::uint32_t>(at[1]) << 16;
}

__global__ void m8n8k4_kernel(const Operands4* in, Results4* out) {
  const int lane = static_cast<int>(threadIdx.x), q = lane / 4 % 4, r = lane % 4 + lane / 16 * 4;
  const Operands4& o = in[blockIdx.x];
  const uint2 a = make_uint2(pair_at(o.a[q][r]), pair_at(o.a[q][r] + 2));
  const uint2 b = make_uint2(pair_at(o.b[q][r]), pair_at(o.b[q][r] + 2));
  float c[8];
  for (int i = 0; i < 8; ++i) {
    c[i] = o.c[q][(i & 2) + lane / 16 * 4 + (lane & 1)][(i & 1) + (lane & 2) + (i & 4)];
  }
  cuda::mma_m8n8k4_f16<cuda::kM8n8k4Path>(c, a, b);
  for (int i = 0; i < 8; ++i) {
    out[blockIdx.x].d[q][(i & 2) + lane / 16 * 4 + (lane & 1)][(i & 1) + (lane & 2) + (i & 4)] = c[i];
  }
}

// B row by row. `native`: the card's own instruction, whatever its arithmetic.
__global__ void m8n8k4_rows_kernel(const Operands4* in, Results4* out, bool native) {
  const int lane = static_cast<int>(threadIdx.x), q = lane / 4 % 4, r = lane % 4 + lane / 16 * 4, k = lane % 4;
  const Operands4& o = in[blockIdx.x];
  const uint2 a = make_uint2(pair_at(o.a[q][r]), pair_at(o.a[q][r] + 2));
  std::uint32_t columns[4];
  for (int i = 0; i < 4; ++i) columns[i] = o.b[q][lane / 16 * 4 + i][k];
  const uint2 b = make_uint2(columns[0] | columns[1] << 16, columns[2] | columns[3] << 16);
  float c[8];
  for (int i = 0; i < 8; ++i) {
    c[i] = o.c[q][(i & 2) + lane / 16 * 4 + (lane & 1)][(i & 1) + (lane & 2) + (i & 4)];
  }
  if (native) {
    asm volatile(
        "mma.sync.aligned.m8n8k4.row.row.f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, "
        "{%0, %1, %2, %3, %4, %5, %6, %7};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
        : "r"(a.x), "r"(a.y), "r"(b.x), "r"(b.y));
  } else {
    cuda::mma_m8n8k4_f16_rows<cuda::kM8n8k4Path>(c, a, b);
  }
  for (int i = 0; i < 8; ++i) {
    out[blockIdx.x].d[q][(i & 2) + lane / 16 * 4 + (lane & 1)][(i & 1) + (lane & 2) + (i & 4)] = c[i];
  }
}

float text4(const Operands4& o, int q, int row, int col) {
  float a[4], b[4];
  for (int k = 0; k < 4; ++k) {
    a[k] = num::f16_to_float(o.a[q][row][k]);
    b[k] = num::f16_to_float(o.b[q][col][k]);
  }
  return fused::dot4(a, b, o.c[q][row][col]);
}

template <class Found>
void expect_text4(const std::vector<Operands4>& operands, Found found) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    for (int at = 0; at < 256; ++at) {
      const int q = at / 64, row = at / 8 % 8, col = at % 8;
      const float want = text4(operands[i], q, row, col), have = found(i, q, row, col);
      if (same_bits(want, have) || ++wrong > 8) continue;
      ADD_FAILURE() << "instruction " << i << " (sort " << i % kSorts << ") quad-pair " << q << " row " << row
                    << " column " << col << std::hexfloat << ": expected " << want << ", found " << have;
    }
  }
  EXPECT_EQ(wrong, 0u);
}

TEST(FusedDot, OfFourF16EqualsTheText) {
  const std::vector<Operands4> operands = operands4(900);
  expect_text4(operands, [&](std::size_t i, int q, int row, int col) {
    const Operands4& o = operands[i];
    std::uint32_t a[2], b[2];
    for (int k = 0; k < 2; ++k) {
      a[k] = o.a[q][row][2 * k] | static_cast<std::uint32_t>(o.a[q][row][2 * k + 1]) << 16;
      b[k] = o.b[q][col][2 * k] | static_cast<std::uint32_t>(o.b[q][col][2 * k + 1]) << 16;
    }
    return cuda::fused_dot4_f16(a, b, o.c[q][row][col]);
  });
}

TEST(MmaM8n8k4, EqualsTheText) {
  NIBBLE_NEEDS_DEVICE();
  const std::vector<Operands4> operands = operands4(4200);  // 1,075,200 results
  DeviceArray<Operands4> in(operands);
  DeviceArray<Results4> out(operands.size());
  m8n8k4_kernel<<<static_cast<unsigned>(operands.size()), 32>>>(in.data(), out.data());
  finish_device();
  EXPECT_EQ(out.damage(), "");
  const std::vector<Results4> d = out.download();
  expect_text4(operands, [&](std::size_t i, int q, int row, int col) { return d[i].d[q][row][col]; });
}

TEST(MmaM8n8k4, RowByRowEqualsTheText) {
  NIBBLE_NEEDS_DEVICE();
  const std::vector<Operands4> operands = operands4(4200);
  DeviceArray<Operands4> in(operands);
  DeviceArray<Results4> out(operands.size());
  m8n8k4_rows_kernel<<<static_cast<unsigned>(operands.size()), 32>>>(in.data(), out.data(), false);
  finish_device();
  EXPECT_EQ(out.damage(), "");
  const std::vector<Results4> d = out.download();
  expect_text4(operands, [&](std::size_t i, int q, int row, int col) { return d[i].d[q][row][col]; });
}

// Small integers, whose sums every arithmetic has exactly: where the card's own instruction finds its operands.
TEST(MmaM8n8k4, RowByRowLiesWhereTheCardHasIt) {
  NIBBLE_NEEDS_DEVICE();
  std::vector<Operands4> operands(64);
  Hash random{19};
  const auto integer = [&] { return static_cast<float>(static_cast<int>(random() % 63u) - 31); };
  for (Operands4& o : operands) {
    for (int q = 0; q < 4; ++q) {
      for (auto& row : o.a[q]) for (auto& v : row) v = num::float_to_f16(integer());
      for (auto& col : o.b[q]) for (auto& v : col) v = num::float_to_f16(integer());
      for (auto& row : o.c[q]) for (auto& v : row) v = integer();
    }
  }
  DeviceArray<Operands4> in(operands);
  DeviceArray<Results4> out(operands.size());
  m8n8k4_rows_kernel<<<static_cast<unsigned>(operands.size()), 32>>>(in.data(), out.data(), true);
  finish_device();
  EXPECT_EQ(out.damage(), "");
  const std::vector<Results4> d = out.download();
  for (std::size_t i = 0; i < operands.size(); ++i) {
    for (int at = 0; at < 256; ++at) {
      const int q = at / 64, row = at / 8 % 8, col = at % 8;
      ASSERT_EQ(d[i].d[q][row][col], text4(operands[i], q, row, col)) << q << ", " << row << ", " << col;
    }
  }
}

TEST(MmaM8n8k4, EqualsBigIntegers) {
  NIBBLE_NEEDS_DEVICE();
  const FusedGolden g("f16_4_23");
  std::vector<Operands4> operands(static_cast<std::size_t>(g.blocks()));  // a quarter of a block a quad-pair
  for (int block = 0; block < g.blocks(); ++block) {
    Operands4& o = operands[static_cast<std::size_t>(block)];
    for (int q = 0; q < 4; ++q) {
      for (int i = 0; i < 8; ++i) {
        std::memcpy(o.a[q][i], g.row(g.a, block, q / 2 * 8 + i), sizeof o.a[q][i]);
        std::memcpy(o.b[q][i], g.row(g.b, block, q % 2 * 8 + i), sizeof o.b[q][i]);
        for (int j = 0; j < 8; ++j) o.c[q][i][j] = g.addend(block, q / 2 * 8 + i, q % 2 * 8 + j);
      }
    }
  }
  DeviceArray<Operands4> in(operands);
  DeviceArray<Results4> out(operands.size());
  m8n8k4_kernel<<<static_cast<unsigned>(operands.size()), 32>>>(in.data(), out.data());
  finish_device();
  EXPECT_EQ(out.damage(), "");
  const std::vector<Results4> d = out.download();
  std::size_t wrong = 0;
  for (int i = 0; i < g.blocks() * 256; ++i) {
    const int block = i / 256, q = i / 64 % 4, row = i / 8 % 8, col = i % 8;
    wrong += !same_bits(d[static_cast<std::size_t>(block)].d[q][row][col],
                        g.wanted(block, q / 2 * 8 + row, q % 2 * 8 + col));
  }
  EXPECT_EQ(wrong, 0u) << "of " << g.result.size();
}

// One m16n8k64 of a warp: codes packed two a byte, low = even k.
struct Operands64 {
  std::uint32_t a[16][8], b[8][8];
  std::uint8_t scales_a[16][4], scales_b[8][4];
  float c[16][8];
};
struct Results64 {
  float d[16][8];
};

std::uint8_t scale_element(std::size_t sort, Hash& random) {
  const std::uint32_t r = random();
  switch (sort) {
    case 0:
      return static_cast<std::uint8_t>(0x30u + r % 16u);
    case 1:  // zeros and subnormals
      return static_cast<std::uint8_t>(r % 8u);
    case 2:
      return 0;
    case 3:  // NaN too
      return static_cast<std::uint8_t>(r % 128u);
    default:
      return static_cast<std::uint8_t>(r % 127u);
  }
}

std::vector<Operands64> operands64(std::size_t count) {
  std::vector<Operands64> all(count);
  Hash random{11};
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t sort = i % kSorts;
    Operands64& o = all[i];
    const std::uint32_t mask = sort == 4 && i % 2 == 0 ? 0x88888888u : 0xFFFFFFFFu;  // codes of +0 and -0
    for (auto& row : o.a) for (auto& v : row) v = random() & mask;
    for (auto& col : o.b) for (auto& v : col) v = random();
    for (auto& row : o.scales_a) for (auto& v : row) v = scale_element(sort, random);
    for (auto& col : o.scales_b) for (auto& v : col) v = scale_element(sort == 2 ? 0 : sort, random);
    for (auto& row : o.c) for (auto& v : row) v = accumulator(sort, random);
  }
  return all;
}

__device__ std::uint32_t word_of(const std::uint8_t* s) {
  return s[0] | static_cast<std::uint32_t>(s[1]) << 8 | static_cast<std::uint32_t>(s[2]) << 16 |
         static_cast<std::uint32_t>(s[3]) << 24;
}

template <MmaPath Path, int ThreadA, int ThreadB>
__global__ void m16n8k64_kernel(const Operands64* in, Results64* out) {
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, p = lane % 4;
  const Operands64& o = in[blockIdx.x];
  const std::uint32_t a[4] = {o.a[g][p], o.a[g + 8][p], o.a[g][4 + p], o.a[g + 8][4 + p]};
  const std::uint32_t b[2] = {o.b[g][p], o.b[g][4 + p]};
  // Lanes that are not looked at bring NaN.
  const std::uint32_t scale_a = p / 2 == ThreadA ? word_of(o.scales_a[g + p % 2 * 8]) : 0x7F7F7F7Fu;
  const std::uint32_t scale_b = p == ThreadB ? word_of(o.scales_b[g]) : 0x7F7F7F7Fu;
  float c[4] = {o.c[g][2 * p], o.c[g][2 * p + 1], o.c[g + 8][2 * p], o.c[g + 8][2 * p + 1]};
  cuda::mma_m16n8k64_nvfp4<Path, ThreadA, ThreadB>(c, a, b, scale_a, scale_b);
  Results64& d = out[blockIdx.x];
  d.d[g][2 * p] = c[0];
  d.d[g][2 * p + 1] = c[1];
  d.d[g + 8][2 * p] = c[2];
  d.d[g + 8][2 * p + 1] = c[3];
}

void values_of(const std::uint32_t* words, float* out) {
  for (int k = 0; k < 64; ++k) out[k] = num::e2m1_to_float(static_cast<std::uint8_t>(words[k / 8] >> (k % 8 * 4) & 15u));
}

template <class Found>
void expect_text64(const std::vector<Operands64>& operands, const char* what, Found found) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const Operands64& o = operands[i];
    for (int row = 0; row < 16; ++row) {
      float a[64], b[64];
      values_of(o.a[row], a);
      for (int col = 0; col < 8; ++col) {
        values_of(o.b[col], b);
        const float want = fused::dot64_fp4(a, b, o.scales_a[row], o.scales_b[col], o.c[row][col]);
        const float have = found(i, row, col);
        if (same_bits(want, have) || ++wrong > 8) continue;
        ADD_FAILURE() << what << ": instruction " << i << " (sort " << i % kSorts << ") row " << row << " column "
                      << col << std::hexfloat << ": expected " << want << ", found " << have;
      }
    }
  }
  EXPECT_EQ(wrong, 0u) << what;
}

TEST(FusedDot, OfFp4BlocksEqualsTheText) {
  std::vector<Operands64> operands = operands64(900);
  Hash random{5};
  for (Operands64& o : operands) {  // the model does not look at bit 7
    for (auto& row : o.scales_a) for (auto& v : row) v = static_cast<std::uint8_t>(v | (random() % 2 << 7));
  }
  expect_text64(operands, "integers", [&](std::size_t i, int row, int col) {
    const Operands64& o = operands[i];
    std::uint32_t of_a = 0, of_b = 0;
    for (int s = 0; s < 4; ++s) {
      of_a |= static_cast<std::uint32_t>(o.scales_a[row][s]) << (8 * s);
      of_b |= static_cast<std::uint32_t>(o.scales_b[col][s]) << (8 * s);
    }
    return cuda::fused_dot64_fp4(o.a[row], o.b[col], of_a, of_b, o.c[row][col]);
  });
}

template <MmaPath Path, int ThreadA, int ThreadB>
void check_m16n8k64(std::size_t count) {
  const std::vector<Operands64> operands = operands64(count);
  DeviceArray<Operands64> in(operands);
  DeviceArray<Results64> out(count);
  m16n8k64_kernel<Path, ThreadA, ThreadB><<<static_cast<unsigned>(count), 32>>>(in.data(), out.data());
  finish_device();
  EXPECT_EQ(out.damage(), "");
  const std::vector<Results64> d = out.download();
  const std::string what = "selectors " + std::to_string(ThreadA) + ", " + std::to_string(ThreadB);
  expect_text64(operands, what.c_str(), [&](std::size_t i, int row, int col) { return d[i].d[row][col]; });
}

TEST(MmaM16n8k64, EqualsTheText) {
  NIBBLE_NEEDS_DEVICE();
  check_m16n8k64<MmaPath::emulated, 0, 0>(8400);  // 1,075,200 results
  check_m16n8k64<MmaPath::emulated, 1, 0>(600);
  check_m16n8k64<MmaPath::emulated, 0, 2>(600);
  check_m16n8k64<MmaPath::emulated, 1, 3>(600);
  check_m16n8k64<MmaPath::emulated, 0, 1>(600);
}

TEST(MmaM16n8k64, EqualsBigIntegers) {
  NIBBLE_NEEDS_DEVICE();
  const FusedGolden g("mxf4nvf4_64_35");
  std::vector<Operands64> operands(static_cast<std::size_t>(2 * g.blocks()));
  for (int block = 0; block < g.blocks(); ++block) {
    for (int half = 0; half < 2; ++half) {
      Operands64& o = operands[static_cast<std::size_t>(2 * block + half)];
      for (int i = 0; i < 16; ++i) {
        std::memcpy(o.a[i], g.row(g.a, block, i), sizeof o.a[i]);
        std::memcpy(o.scales_a[i], g.row(g.a_scales, block, i), sizeof o.scales_a[i]);
        for (int j = 0; j < 8; ++j) o.c[i][j] = g.addend(block, i, 8 * half + j);
      }
      for (int j = 0; j < 8; ++j) {
        std::memcpy(o.b[j], g.row(g.b, block, 8 * half + j), sizeof o.b[j]);
        std::memcpy(o.scales_b[j], g.row(g.b_scales, block, 8 * half + j), sizeof o.scales_b[j]);
      }
    }
  }
  DeviceArray<Operands64> in(operands);
  DeviceArray<Results64> out(operands.size());
  m16n8k64_kernel<cuda::kFp4Path, 0, 0><<<static_cast<unsigned>(operands.size()), 32>>>(in.data(), out.data());
  finish_device();
  EXPECT_EQ(out.damage(), "");
  const std::vector<Results64> d = out.download();
  std::size_t wrong = 0;
  for (int i = 0; i < g.blocks() * 256; ++i) {
    const int block = i / 256, row = i / 16 % 16, col = i % 16;
    wrong += !same_bits(d[static_cast<std::size_t>(2 * block + col / 8)].d[row][col % 8], g.wanted(block, row, col));
  }
  EXPECT_EQ(wrong, 0u) << "of " << g.result.size();
}

TEST(MmaM16n8k64, NativeEqualsTheText) {
  NIBBLE_NEEDS_DEVICE();
  cudaDeviceProp card;
  ASSERT_EQ(cudaGetDeviceProperties(&card, 0), cudaSuccess);
  if (card.major != 12) GTEST_SKIP() << "this device emulates the instruction";
  check_m16n8k64<cuda::kFp4Path, 0, 0>(8400);
  check_m16n8k64<cuda::kFp4Path, 1, 3>(600);
}

__global__ void e2m1_kernel(const float* in, std::uint8_t* out, int pairs) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < pairs) out[i] = static_cast<std::uint8_t>(cuda::to_e2m1x2<cuda::kFp4Path>(in[2 * i], in[2 * i + 1]));
}

TEST(E2m1, EqualsTheCodec) {
  NIBBLE_NEEDS_DEVICE();
  std::vector<float> values;
  for (const float edge : {0.0f, 0.25f, 0.5f, 0.75f, 1.0f, 1.25f, 1.5f, 1.75f, 2.0f, 2.5f, 3.0f, 3.5f, 4.0f, 5.0f, 6.0f, 7.0f,
                           INFINITY, 1e-40f, 3e38f, std::numeric_limits<float>::quiet_NaN()}) {
    const std::uint32_t bits = num::bit_cast<std::uint32_t>(edge);
    for (const std::uint32_t u : {bits, bits + 1, bits - 1}) {
      for (const std::uint32_t sign : {0u, 0x80000000u}) values.push_back(num::bit_cast<float>(u ^ sign));
    }
  }
  Hash random{3};
  while (values.size() < 1000000) {
    values.push_back(random() % 8 == 0 ? num::bit_cast<float>(random()) : random.value(-4, 4));
  }
  const auto pairs = static_cast<int>(values.size() / 2);
  DeviceArray<float> in(values);
  DeviceArray<std::uint8_t> out(static_cast<std::size_t>(pairs));
  e2m1_kernel<<<static_cast<unsigned>(pairs + 255) / 256, 256>>>(in.data(), out.data(), pairs);
  finish_device();
  const std::vector<std::uint8_t> codes = out.download();
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const int want = num::float_to_e2m1(values[2 * i]) | num::float_to_e2m1(values[2 * i + 1]) << 4;
    ASSERT_EQ(want, codes[i]) << values[2 * i] << ", " << values[2 * i + 1];
  }
}

}  // namespace
}  // namespace nibble::test
