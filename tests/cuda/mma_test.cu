// mma_test.cu: the device's m16n8k16 against its emulation, lane by lane, and the emulation against the
// text of matrix_order.h on the host.
#include <gtest/gtest.h>

#include "backends/cuda/device/mma.cuh"
#include "tests/cuda/device_buffer.h"
#include "tests/cuda/fused_golden.h"
#include "tests/cuda/reference.h"
#include "tests/support/buffers.h"

namespace nibble::test {
namespace {

using cuda::MmaPath;

// One instruction of a warp: A [16, 16], B [8 columns, 16], C [16, 8].
struct Operands {
  std::uint16_t a[16][16], b[8][16];
  float c[16][8];
};
struct Results {
  float d[16][8];
};

enum class Sort { normal, wide, zeros, subnormal, large, cancel, special, kCount };

std::uint16_t element(Sort sort, Hash& random) {
  const std::uint32_t r = random();
  switch (sort) {
    case Sort::normal:
      return num::float_to_bf16(random.value(-4, 4));
    case Sort::wide:
      return num::float_to_bf16(random.value(-40, 40));
    case Sort::zeros:
      if (r % 3 == 0) return static_cast<std::uint16_t>(r >> 16 & 0x8000u);
      return num::float_to_bf16(random.value(-100, 60));
    case Sort::subnormal:
      if (r % 2 == 0) return static_cast<std::uint16_t>(r >> 8 & 0x807Fu);
      return num::float_to_bf16(random.value(-126, -10));
    case Sort::large:
      return r % 4 == 0 ? static_cast<std::uint16_t>((r >> 16 & 0x8000u) | 0x7F7Fu)
                        : num::float_to_bf16(random.value(50, 127));
    case Sort::cancel:
      return num::float_to_bf16(random.value(0, 1));
    default:
      return r % 32 == 0 ? static_cast<std::uint16_t>((r >> 16 & 0x8000u) | (r % 64 == 0 ? 0x7F80u : 0x7FC1u))
             : r % 32 < 4 ? static_cast<std::uint16_t>(r >> 16 & 0x8000u)
                          : static_cast<std::uint16_t>(r >> 16);
  }
}

float accumulator(Sort sort, Hash& random) {
  const std::uint32_t r = random();
  if (r % 4 == 0) return num::bit_cast<float>(r & 0x80000000u);
  switch (sort) {
    case Sort::normal:
    case Sort::cancel:
      return random.value(-6, 6);
    case Sort::wide:
    case Sort::zeros:
      return random.value(-80, 80);
    case Sort::subnormal:
      return r % 4 == 1 ? num::bit_cast<float>(r & 0x807FFFFFu) : random.value(-126, -100);
    case Sort::large:
      return random.value(100, 127);
    default:
      return num::bit_cast<float>(random());
  }
}

std::vector<Operands> random_operands(std::size_t count) {
  std::vector<Operands> all(count);
  Hash random{42};
  for (std::size_t i = 0; i < count; ++i) {
    const auto sort = static_cast<Sort>(i % static_cast<std::size_t>(Sort::kCount));
    Operands& o = all[i];
    for (auto& row : o.a) {
      for (std::uint16_t& v : row) v = element(sort, random);
    }
    for (auto& col : o.b) {
      for (std::uint16_t& v : col) v = element(sort, random);
    }
    for (auto& row : o.c) {
      for (float& v : row) v = accumulator(sort, random);
    }
    if (sort != Sort::cancel) continue;
    // Products in pairs of opposite sign; in half of the cases all of them cancel, and c is what is left.
    const int pairs = i % 2 == 0 ? 8 : 6;
    for (int k = 0; k < pairs; ++k) {
      for (auto& row : o.a) row[2 * k + 1] = row[2 * k];
      for (auto& col : o.b) col[2 * k + 1] = col[2 * k] ^ 0x8000u;
    }
  }
  return all;
}

__device__ std::uint32_t pair_of(const std::uint16_t* at) {
  return at[0] | static_cast<std::uint32_t>(at[1]) << 16;
}

template <MmaPath Path>
__global__ void mma_kernel(const Operands* in, Results* out) {
  const Operands& o = in[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, q = lane % 4;
  const std::uint32_t a[4] = {pair_of(&o.a[g][2 * q]), pair_of(&o.a[g + 8][2 * q]),
                              pair_of(&o.a[g][2 * q + 8]), pair_of(&o.a[g + 8][2 * q + 8])};
  float c[4] = {o.c[g][2 * q], o.c[g][2 * q + 1], o.c[g + 8][2 * q], o.c[g + 8][2 * q + 1]};
  cuda::mma_m16n8k16_bf16<Path>(c, a, pair_of(&o.b[g][2 * q]), pair_of(&o.b[g][2 * q + 8]));
  Results& d = out[blockIdx.x];
  d.d[g][2 * q] = c[0];
  d.d[g][2 * q + 1] = c[1];
  d.d[g + 8][2 * q] = c[2];
  d.d[g + 8][2 * q + 1] = c[3];
}

// 1 if the code that this device runs has the instruction.
__global__ void has_native(int* answer) { *answer = cuda::kMmaPath == MmaPath::native; }

template <MmaPath Path>
std::vector<Results> run_mma(const std::vector<Operands>& operands) {
  DeviceArray<Operands> in(operands);
  DeviceArray<Results> out(operands.size());
  mma_kernel<Path><<<static_cast<unsigned>(operands.size()), 32>>>(in.data(), out.data());
  finish_device();
  EXPECT_EQ(out.damage(), "");
  return out.download();
}

float on_host(const Operands& o, int row, int col) {
  float a[16], b[16];
  for (int k = 0; k < 16; ++k) {
    a[k] = num::bf16_to_float(o.a[row][k]);
    b[k] = num::bf16_to_float(o.b[col][k]);
  }
  return fused::dot16(a, b, o.c[row][col]);
}

template <class F>
void expect_results(const std::vector<Operands>& operands, const char* what, F pair) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    for (int row = 0; row < 16; ++row) {
      for (int col = 0; col < 8; ++col) {
        const auto [a, b] = pair(i, row, col);
        if (same_bits(a, b) || ++wrong > 8) continue;
        ADD_FAILURE() << what << ": instruction " << i << " (sort "
                      << i % static_cast<std::size_t>(Sort::kCount) << ") row " << row << " column "
                      << col << std::hexfloat << ": " << a << " and " << b;
      }
    }
  }
  EXPECT_EQ(wrong, 0u) << what << " of " << operands.size() * 128 << " results";
}

constexpr std::size_t kInstructions = 8400;  // 1,075,200 results

TEST(FusedDot, EqualsTheTextOnTheHost) {
  const std::vector<Operands> operands = random_operands(1400);
  expect_results(operands, "integers and doubles", [&](std::size_t i, int row, int col) {
    const Operands& o = operands[i];
    std::uint32_t a[8], b[8];
    for (int k = 0; k < 8; ++k) {
      a[k] = o.a[row][2 * k] | static_cast<std::uint32_t>(o.a[row][2 * k + 1]) << 16;
      b[k] = o.b[col][2 * k] | static_cast<std::uint32_t>(o.b[col][2 * k + 1]) << 16;
    }
    return std::pair(cuda::fused_dot16_bf16(a, b, o.c[row][col]), on_host(o, row, col));
  });
}

TEST(Mma, EmulationEqualsTheText) {
  NIBBLE_NEEDS_DEVICE();
  const std::vector<Operands> operands = random_operands(kInstructions);
  const std::vector<Results> emulated = run_mma<MmaPath::emulated>(operands);
  expect_results(operands, "emulated and text", [&](std::size_t i, int row, int col) {
    return std::pair(emulated[i].d[row][col], on_host(operands[i], row, col));
  });
}

TEST(Mma, NativeEqualsEmulation) {
  NIBBLE_NEEDS_DEVICE();
  DeviceArray<int> answer(1);
  has_native<<<1, 1>>>(answer.data());
  finish_device();
  if (answer.download()[0] != 1) GTEST_SKIP() << "this device emulates the instruction";
  const std::vector<Operands> operands = random_operands(kInstructions);
  const std::vector<Results> native = run_mma<MmaPath::native>(operands);
  const std::vector<Results> emulated = run_mma<MmaPath::emulated>(operands);
  expect_results(operands, "native and emulated", [&](std::size_t i, int row, int col) {
    return std::pair(native[i].d[row][col], emulated[i].d[row][col]);
  });
}

// Two instructions a block of the file.
template <MmaPath Path>
void expect_golden() {
  const FusedGolden g("bf16_16_25");
  std::vector<Operands> operands(static_cast<std::size_t>(2 * g.blocks()));
  for (int block = 0; block < g.blocks(); ++block) {
    for (int half = 0; half < 2; ++half) {
      Operands& o = operands[static_cast<std::size_t>(2 * block + half)];
      for (int i = 0; i < 16; ++i) std::memcpy(o.a[i], g.row(g.a, block, i), sizeof o.a[i]);
      for (int j = 0; j < 8; ++j) std::memcpy(o.b[j], g.row(g.b, block, 8 * half + j), sizeof o.b[j]);
      for (int i = 0; i < 128; ++i) o.c[i / 8][i % 8] = g.addend(block, i / 8, 8 * half + i % 8);
    }
  }
  const std::vector<Results> found = run_mma<Path>(operands);
  expect_results(operands, "big integers", [&](std::size_t i, int row, int col) {
    return std::pair(found[i].d[row][col], g.wanted(static_cast<int>(i / 2), row, static_cast<int>(i % 2) * 8 + col));
  });
}

TEST(Mma, EqualsBigIntegers) {
  NIBBLE_NEEDS_DEVICE();
  expect_golden<MmaPath::emulated>();
  expect_golden<cuda::kMmaPath>();
}

}  // namespace
}  // namespace nibble::test
