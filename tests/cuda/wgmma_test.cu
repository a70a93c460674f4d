// wgmma_test.cu: what sm_90's matrix instructions add up, against core/numerics/fused_dot.h, bit
// for bit. Beside passing or failing, each case prints rows "probe | name | results equal to the
// model | of". A row "name as ..." is a rival of the model, printed to show that the operands tell
// them apart.
#include <gtest/gtest.h>

#include "tests/cuda/device_buffer.h"
#include "tests/cuda/fused_golden.h"
#include "tests/cuda/probe.h"

namespace nibble::test {
namespace {

// 1 if the code that this device runs has the instructions.
__global__ void has_wgmma(int* answer) {
#if defined(NIBBLE_HAVE_WGMMA)
  *answer = 1;
#else
  *answer = 0;
#endif
}

class Sm90Probe : public ::testing::Test {
 protected:
  void SetUp() override {
    NIBBLE_NEEDS_DEVICE();
    int device = 0, major = 0, minor = 0;
    cuda_ok(cudaGetDevice(&device));
    cuda_ok(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    cuda_ok(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    if (major != 9 || minor != 0) {
      GTEST_SKIP() << "measures compute capability 9.0, this is " << major << "." << minor;
    }
    DeviceArray<int> answer(1);
    has_wgmma<<<1, 1>>>(answer.data());
    finish_device();
    if (answer.download()[0] != 1) GTEST_SKIP() << "not built for sm_90a";
  }
};

template <Format F, int N, int Steps, bool SharedA>
std::vector<float> run_wgmma(const Problem& p, bool keep_c) {
  DeviceArray<std::uint8_t> a(p.a), b(p.b);
  DeviceArray<float> c(p.c), d(p.results());
  constexpr int kShared =
      tile_bytes(64, Steps) + tile_bytes(N, Steps) + 1024;  // tiles start at 1,024
  const auto kernel = wgmma_kernel<F, N, Steps, SharedA>;
  cuda_ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  kernel<<<static_cast<unsigned>(p.blocks), 128, kShared>>>(a.data(), b.data(), c.data(), d.data(),
                                                            keep_c ? 1 : 0);
  finish_device();
  EXPECT_EQ(d.damage(), "");
  return d.download();
}

template <Format F>
std::vector<float> run_mma(const Problem& p) {
  DeviceArray<std::uint8_t> a(p.a), b(p.b);
  DeviceArray<float> c(p.c), d(p.results());
  mma_sync_kernel<F>
      <<<static_cast<unsigned>(p.blocks), 32>>>(a.data(), b.data(), c.data(), d.data());
  finish_device();
  EXPECT_EQ(d.damage(), "");
  return d.download();
}

float bf16_model(const float* a, const float* b, float c) {
  return num::fused_dot<16, 25>(a, b, c);
}
float e4m3_model(const float* a, const float* b, float c) {
  return num::fused_dot<32, 13, 14, num::kE4m3MinExponent>(a, b, c);
}

// A from registers and from shared memory, c kept and dropped.
template <Format F, int N, int Steps, class Model>
void probe_wgmma(const std::string& name, int results, Model model) {
  const Problem p(F, 64, N, Steps, results / (64 * N), sorts_of(F));
  for (const bool keep_c : {true, false}) {
    const std::string full = name + (Steps > 1 ? " chain of " + std::to_string(Steps) : "") +
                             ", scale-d " + (keep_c ? "1" : "0");
    const std::vector<float> expected = modelled(p, keep_c, model);
    compare(full + ", A in registers", p, run_wgmma<F, N, Steps, false>(p, keep_c), expected, true);
    compare(full + ", A shared", p, run_wgmma<F, N, Steps, true>(p, keep_c), expected, true);
  }
}

constexpr int kResults =
    40 * 64 * 256;  // 655,360: whole tiles of every N, all sorts of each format

TEST_F(Sm90Probe, WgmmaBf16N64) {
  probe_wgmma<Format::bf16, 64, 1>("wgmma m64n64k16 bf16", kResults, bf16_model);
  probe_wgmma<Format::bf16, 64, 8>("wgmma m64n64k16 bf16", kResults / 2, bf16_model);
}

TEST_F(Sm90Probe, WgmmaBf16N256) {
  probe_wgmma<Format::bf16, 256, 1>("wgmma m64n256k16 bf16", kResults, bf16_model);
  probe_wgmma<Format::bf16, 256, 8>("wgmma m64n256k16 bf16", kResults / 2, bf16_model);
}

TEST_F(Sm90Probe, WgmmaE4m3) {
  probe_wgmma<Format::e4m3, 8, 1>("wgmma m64n8k32 e4m3", kResults, e4m3_model);
  probe_wgmma<Format::e4m3, 8, 8>("wgmma m64n8k32 e4m3", kResults / 4, e4m3_model);
}

TEST_F(Sm90Probe, WgmmaE4m3Rivals) {
  const std::string name = "wgmma m64n8k32 e4m3";
  const Problem p(Format::e4m3, 64, 8, 1, kResults / 2 / 512, sorts_of(Format::e4m3));
  const std::vector<float> device = run_wgmma<Format::e4m3, 8, 1, true>(p, true);
  const auto rival = [&](const char* as, auto model) {
    compare(name + " as " + as, p, device, modelled(p, true, model), false);
  };
  constexpr int kLeast = num::kE4m3MinExponent;
  rival("24 bits of result", [](const float* a, const float* b, float c) {
    return num::fused_dot<32, 13, 24, kLeast>(a, b, c);
  });
  rival("F = 14", [](const float* a, const float* b, float c) {
    return num::fused_dot<32, 14, 14, kLeast>(a, b, c);
  });
  rival("F = 25, 24 bits", [](const float* a, const float* b, float c) {
    return num::fused_dot<32, 25, 24, kLeast>(a, b, c);
  });
  rival("subnormals normalised", [](const float* a, const float* b, float c) {
    return num::fused_dot<32, 13, 14>(a, b, c);
  });
  rival("two groups of 16", [](const float* a, const float* b, float c) {
    return num::fused_dot<16, 13, 14, kLeast>(a + 16, b + 16,
                                              num::fused_dot<16, 13, 14, kLeast>(a, b, c));
  });
}

TEST_F(Sm90Probe, MmaF16) {
  const std::string name = "mma m16n8k16 f16";
  const Problem p(Format::f16, 16, 8, 1, kResults / 128, sorts_of(Format::f16));
  const std::vector<float> device = run_mma<Format::f16>(p);
  constexpr int kLeast = num::kF16MinExponent;
  compare(name, p, device,
          modelled(p, true,
                   [](const float* a, const float* b, float c) {
                     return num::fused_dot<16, 25, 24, kLeast>(a, b, c);
                   }),
          true);
  compare(name + " as subnormals normalised", p, device, modelled(p, true, bf16_model), false);
  compare(name + " as F = 24", p, device,
          modelled(p, true,
                   [](const float* a, const float* b, float c) {
                     return num::fused_dot<16, 24, 24, kLeast>(a, b, c);
                   }),
          false);
}

// tf32 is the upper 19 bits of a float; `half` is added before the others go.
template <int Group, int F>
float tf32_model(const float* a, const float* b, float c, std::uint32_t half) {
  float x[8], y[8];
  const auto cut = [&](float v) {
    const auto bits = num::bit_cast<std::uint32_t>(v);
    return num::bit_cast<float>((bits + ((bits & 0x7F800000u) == 0x7F800000u ? 0u : half)) &
                                0xFFFFE000u);
  };
  for (int k = 0; k < 8; ++k) {
    x[k] = cut(a[k]);
    y[k] = cut(b[k]);
  }
  for (int k = 0; k < 8; k += Group) c = num::fused_dot<Group, F>(x + k, y + k, c);
  return c;
}

TEST_F(Sm90Probe, MmaTf32) {
  const std::string name = "mma m16n8k8 tf32";
  const Problem p(Format::tf32, 16, 8, 1, kResults / 128, sorts_of(Format::tf32));
  const std::vector<float> device = run_mma<Format::tf32>(p);
  const auto with = [&](auto model, std::uint32_t half) {
    return modelled(p, true,
                    [=](const float* a, const float* b, float c) { return model(a, b, c, half); });
  };
  compare(name, p, device, with(tf32_model<8, 25>, 0), true);
  compare(name + " as two groups of 4", p, device, with(tf32_model<4, 25>, 0), false);
  compare(name + " as F = 24", p, device, with(tf32_model<8, 24>, 0), false);
  compare(name + " as operands rounded", p, device, with(tf32_model<8, 25>, 0x1000u), false);
}

// A block of the file is 16 rows and 16 columns of a product, or 8 and 8 of two; the rest of a tile is zero.
template <Format F, int N, bool SharedA>
void expect_golden(const FusedGolden& g) {
  constexpr int kColumns = N < 16 ? N : 16, kParts = 16 / kColumns;
  Problem p(F, 64, N, 1, g.blocks() * kParts, {Sort::normal});
  std::fill(p.a.begin(), p.a.end(), std::uint8_t{0});
  std::fill(p.b.begin(), p.b.end(), std::uint8_t{0});
  std::fill(p.c.begin(), p.c.end(), 0.0f);
  for (int at = 0; at < p.blocks; ++at) {
    const int block = at / kParts, first = at % kParts * kColumns;
    const auto tile = static_cast<std::size_t>(at);
    for (int i = 0; i < 16; ++i) {
      std::memcpy(&p.a[(tile * 64 + static_cast<std::size_t>(i)) * kStepBytes], g.row(g.a, block, i), kStepBytes);
    }
    for (int j = 0; j < kColumns; ++j) {
      std::memcpy(&p.b[(tile * N + static_cast<std::size_t>(j)) * kStepBytes], g.row(g.b, block, first + j), kStepBytes);
      for (int i = 0; i < 16; ++i) {
        p.c[(tile * 64 + static_cast<std::size_t>(i)) * N + static_cast<std::size_t>(j)] = g.addend(block, i, first + j);
      }
    }
  }
  const std::vector<float> d = run_wgmma<F, N, 1, SharedA>(p, true);
  std::size_t wrong = 0;
  for (int i = 0; i < g.blocks() * 256; ++i) {
    const int block = i / 256, row = i / 16 % 16, col = i % 16;
    const auto tile = static_cast<std::size_t>(block * kParts + col / kColumns);
    wrong += !same_bits(d[(tile * 64 + static_cast<std::size_t>(row)) * N + static_cast<std::size_t>(col % kColumns)],
                        g.wanted(block, row, col));
  }
  EXPECT_EQ(wrong, 0u) << "of " << g.result.size();
}

TEST_F(Sm90Probe, WgmmaEqualsBigIntegers) {
  const FusedGolden bf16("bf16_16_25"), e4m3("e4m3_32_13");
  expect_golden<Format::bf16, 64, false>(bf16);
  expect_golden<Format::bf16, 256, true>(bf16);
  expect_golden<Format::e4m3, 8, false>(e4m3);
  expect_golden<Format::e4m3, 8, true>(e4m3);
}

TEST_F(Sm90Probe, ProductsAboveFloatCancel) {
  const std::vector<Sort> above = {Sort::above};
  {
    const Problem p(Format::bf16, 16, 8, 1, 1024, above);
    const std::vector<float> device = run_mma<Format::bf16>(p);
    compare("mma m16n8k16 bf16, above 2^128", p, device, modelled(p, true, bf16_model), true);
    print_outcomes("mma m16n8k16 bf16", p, device);
  }
  const Problem p(Format::bf16, 64, 64, 1, 32, above);
  const std::vector<float> device = run_wgmma<Format::bf16, 64, 1, true>(p, true);
  compare("wgmma m64n64k16 bf16, above 2^128", p, device, modelled(p, true, bf16_model), true);
  print_outcomes("wgmma m64n64k16 bf16", p, device);
}

}  // namespace
}  // namespace nibble::test
