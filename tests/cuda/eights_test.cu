// The ops that take bf16 rows in eights of columns: their device functions over all bf16 values and around ties, and
// the ops themselves against the CPU's, by bytes. Codes behind them: pack_test.cu, whose aligned shapes come here too.
#include <gtest/gtest.h>

#include <random>

#include "backends/cpu/ops/quantize.h"
#include "backends/cpu/ops/rowwise.h"
#include "backends/cuda/ops/eights.cuh"
#include "tests/cases/rows_cases.h"
#include "tests/cuda/device_buffer.h"
#include "tests/cuda/step_on_device.h"
#include "tests/support/buffers.h"

namespace nibble {
namespace {

using test::DeviceArray;
using test::DeviceMatrix;
using test::Kind;
using test::RowsCase;
using test::RowsInput;
using test::RowsOp;
using Half = std::uint16_t;  // bf16

class CudaEights : public testing::Test {
 protected:
  void SetUp() override { NIBBLE_NEEDS_DEVICE(); }
};

constexpr unsigned kThreads = 256;
unsigned blocks_for(std::size_t items) { return static_cast<unsigned>((items + kThreads - 1) / kThreads); }
__device__ std::size_t own_item() { return std::size_t{blockIdx.x} * kThreads + threadIdx.x; }

// Floats that matter for a code: all bf16 values, and those next to every value and tie of e4m3 and of e2m1.
std::vector<float> telling_floats() {
  std::vector<float> all;
  for (std::uint32_t h = 0; h < 65536; ++h) all.push_back(num::bf16_to_float(static_cast<Half>(h)));
  const auto around = [&](float v) {
    for (int d = -3; d <= 3; ++d) {
      const float at = num::bit_cast<float>(num::bit_cast<std::uint32_t>(v) + static_cast<std::uint32_t>(d));
      all.insert(all.end(), {at, -at});
    }
  };
  for (std::uint8_t code = 1; code < 0x7E; ++code) {
    const float low = num::e4m3_to_float(code), high = num::e4m3_to_float(static_cast<std::uint8_t>(code + 1));
    around(low);
    around((low + high) / 2);
  }
  for (const float v : {0x1p-10f, 448.0f, 464.0f, 480.0f, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 6.0f, 7.0f}) {
    around(v);
  }
  for (const std::uint32_t odd : {0x7F800001u, 0xFF800001u, 0x7FFFFFFFu, 0xFFFFFFFFu, 1u, 0x80000001u, 0x7F7FFFFFu}) {
    all.push_back(num::bit_cast<float>(odd));
  }
  std::mt19937 random(3);
  while (all.size() % 4096 != 0) all.push_back(num::bit_cast<float>(static_cast<std::uint32_t>(random())));
  return all;
}

__global__ void convert(const float* v, std::size_t count, std::uint16_t* e4m3, unsigned* bf16, std::uint8_t* e2m1) {
  const std::size_t i = own_item();
  if (i >= count) return;
  e4m3[i] = static_cast<std::uint16_t>(cuda::e4m3_pair(v[i], v[i ^ 1]));
  bf16[i] = cuda::bf16_pair(v[i], v[i ^ 1]);
  e2m1[i] = static_cast<std::uint8_t>(num::e2m1_low16(num::mul(v[i], 8.0f)) & 0xFFu);
}

TEST_F(CudaEights, ConvertsAsTheCodecs) {
  const std::vector<float> values = telling_floats();
  const std::size_t n = values.size();
  const DeviceArray<float> in(values);
  DeviceArray<std::uint16_t> e4m3(n);
  DeviceArray<unsigned> bf16(n);
  DeviceArray<std::uint8_t> e2m1(n);
  convert<<<blocks_for(n), kThreads>>>(in.data(), n, e4m3.data(), bf16.data(), e2m1.data());
  test::finish_device();
  const auto codes = e4m3.download();
  const auto pairs = bf16.download();
  const auto nibbles = e2m1.download();
  for (std::size_t i = 0; i < n; ++i) {
    const float v = values[i], other = values[i ^ 1];
    ASSERT_EQ(codes[i], num::float_to_e4m3(v) | num::float_to_e4m3(other) << 8) << v << " " << other;
    const float low = num::bf16_to_float(static_cast<Half>(pairs[i])),
                high = num::bf16_to_float(static_cast<Half>(pairs[i] >> 16));
    ASSERT_TRUE(test::same_bits(low, num::bf16_to_float(num::float_to_bf16(v)))) << v;
    ASSERT_TRUE(test::same_bits(high, num::bf16_to_float(num::float_to_bf16(other)))) << other;
    if (v == v) ASSERT_EQ(nibbles[i], num::float_to_e2m1(std::fabs(v))) << v;
  }
  for (std::uint32_t code = 0; code < 0x7F; ++code) {
    ASSERT_EQ(num::mul(num::bit_cast<float>(code << 20), 0x1p120f),
              num::e4m3_to_float(static_cast<std::uint8_t>(code)));
  }
}

// Counts where the reciprocal's approximation leads to another quotient than division: b over all mantissas at some
// exponents, a over values that a generator makes of b.
__global__ void compare_quotients(int exponent, unsigned seed, unsigned long long* wrong, float* example) {
  const auto m = static_cast<unsigned>(own_item());  // 2^23 of them
  const float b = num::bit_cast<float>(static_cast<unsigned>(exponent + 127) << 23 | m);
  const float y = num::refined(b, cuda::near_reciprocal(b));
  bool bad = num::abs(num::fma(b, cuda::near_reciprocal(b), -1.0f)) > 0x1p-23f;  // further than an ulp
  unsigned state = seed + m * 2654435761u;
  for (int i = 0; i < 8 && !bad; ++i) {
    state = state * 1664525u + 1013904223u;
    const int e = static_cast<int>(state >> 24 & 63u) - 32 + exponent;
    const float a = num::bit_cast<float>(static_cast<unsigned>(e + 127) << 23 | (state & 0x807FFFFFu));
    bad = num::bit_cast<unsigned>(num::quotient(a, b, y)) != num::bit_cast<unsigned>(num::div(a, b));
  }
  bad = bad || num::bit_cast<unsigned>(num::quotient(1.0f, b, y)) != num::bit_cast<unsigned>(num::div(1.0f, b));
  if (bad && atomicAdd(wrong, 1ull) == 0) *example = b;
}

TEST_F(CudaEights, ReciprocalsLeadToTheQuotient) {
  for (const int exponent : {-60, -9, 0, 1, 20, 59}) {
    DeviceArray<unsigned long long> wrong(std::vector<unsigned long long>{0});
    DeviceArray<float> example(1);
    compare_quotients<<<(1u << 23) / kThreads, kThreads>>>(exponent, 77, wrong.data(), example.data());
    test::finish_device();
    EXPECT_EQ(wrong.download()[0], 0u) << "exponent " << exponent << ", for example " << example.download()[0];
  }
}

template <int N>
__global__ void silu_all(const Half* gates, const float* before, Half* to, unsigned* most) {
  const std::size_t i = own_item();
  cuda::Eight gate[N];
  float v[N][8];
  for (int n = 0; n < N; ++n) {
    gate[n] = cuda::load8(reinterpret_cast<const cuda::Bf16*>(gates) + 8 * (N * i + n));
    cuda::load8(before + 8 * (N * i + n), v[n]);
  }
  const cuda::Eights<N> made = cuda::times_silu(v, gate);
  for (int n = 0; n < N; ++n) cuda::store8(reinterpret_cast<cuda::Bf16*>(to) + 8 * (N * i + n), made.of[n]);
  most[i] = made.most;
}

// Each gate among others that keep it in the branch without divisions, and among those that do not.
template <int N>
void check_silu(std::uint32_t stride) {
  std::vector<Half> gates;
  std::vector<float> before;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    gates.push_back(static_cast<Half>(i * stride));
    before.push_back(i % 97 == 0 ? 0.0f : 1.0f + static_cast<float>(i % 89) / 64);
  }
  const DeviceArray<Half> of_gates(gates);
  const DeviceArray<float> of_before(before);
  DeviceArray<Half> to(gates.size());
  DeviceArray<unsigned> most(gates.size() / 8 / N);
  silu_all<N><<<static_cast<unsigned>(most.size() / kThreads), kThreads>>>(of_gates.data(), of_before.data(), to.data(),
                                                                         most.data());
  test::finish_device();
  const auto made = to.download();
  const auto magnitudes = most.download();
  for (std::size_t i = 0; i < made.size(); ++i) {
    const float gate = num::bf16_to_float(gates[i]), got = num::bf16_to_float(made[i]),
                want = num::bf16_to_float(num::float_to_bf16(num::mul(num::silu(gate), before[i])));
    ASSERT_TRUE(test::same_bits(got, want)) << gate << " * " << before[i] << ": " << got << ", expected " << want;
    const std::uint32_t magnitude = num::bit_cast<std::uint32_t>(got) & 0x7FFFFFFFu;
    ASSERT_GE(magnitudes[i / 8 / N], got == got ? magnitude : cuda::kInfinity + 1) << gate;
  }
}
TEST_F(CudaEights, SiluOfEveryGate) {
  for (const std::uint32_t stride : {1u, 8191u}) {
    check_silu<1>(stride);
    check_silu<2>(stride);
  }
}

// --- the ops ---

constexpr std::int64_t kBehind = 3;  // rows of the class beyond those of the step

template <class E>
std::vector<E> encoded(const std::vector<float>& values, std::int64_t cols) {
  std::vector<E> all;
  for (const float v : values) {
    if constexpr (std::is_same_v<E, float>) {
      all.push_back(v);
    } else {
      all.push_back(num::float_to_bf16(v));
    }
  }
  all.resize(all.size() + static_cast<std::size_t>(kBehind * cols));
  return all;
}

class CudaEightsOps : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { NIBBLE_NEEDS_DEVICE(); }

  void check(RowsOp op, std::int64_t heads, std::int64_t group, std::int64_t gap) {
    const std::int64_t rows = GetParam(), cols = heads * group, all = rows + kBehind;
    const bool norm = op == RowsOp::rms_norm, gated = op == RowsOp::gated_rms_norm;
    const RowsCase c{op, rows, heads, group, !norm, true, true};
    const RowsInput in(c);
    const std::string what = c.key() + " gap " + std::to_string(gap);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows));
    const test::StepOnDevice step(test::plain_batch(tokens));
    cuda::Launch launch;
    launch.step = step.device();
    launch.max_rows = all;
    launch.multiprocessors = 1;  // a block of the plain norm has many rows
    std::vector<float> want(static_cast<std::size_t>(all * cols));
    DeviceArray<float> weight(in.weight);
    DeviceMatrix<Half> of_z(encoded<Half>(in.z, cols), all, cols, gap), y(all, cols, gap);
    const cpu::In x{in.x.data(), cols}, z{in.z.data(), cols};
    const char* why = nullptr;
    // twice for those that may write over an input
    for (const bool over : {false, true}) {
      if (over && norm) break;
      DeviceMatrix<Half>& to = over ? of_z : y;
      if (norm) {
        DeviceMatrix<float> of_x(encoded<float>(in.x, cols), all, cols, gap);
        cpu::rms_norm(isa_, parallel_, rows, cols, x, in.weight.data(), test::kNormEps, {want.data(), cols});
        why = cuda::rms_norm_eights(launch, {of_x.view(), weight.data(), test::kNormEps, to.view()}, nullptr);
        test::finish_device();
      } else {
        DeviceMatrix<Half> of_x(encoded<Half>(in.x, cols), all, cols, gap);
        if (gated) {
          const auto of_group = static_cast<std::int32_t>(group);
          cpu::gated_rms_norm(isa_, parallel_, rows, heads, group, x, z, in.weight.data(), test::kNormEps,
                              {want.data(), cols});
          why = cuda::gated_rms_norm_eights(
              launch, {of_x.view(), of_z.view(), weight.data(), of_group, test::kNormEps, to.view()}, nullptr);
        } else {
          cpu::swiglu(isa_, parallel_, rows, cols, x, z, {want.data(), cols});
          why = cuda::swiglu_eights(launch, {of_x.view(), of_z.view(), to.view()}, nullptr);
        }
        test::finish_device();
      }
      ASSERT_TRUE(why == nullptr) << what << ": " << (why == nullptr ? "" : why);
      ASSERT_EQ(to.damage(), "") << what;
      const std::vector<Half> got = to.download();
      for (std::size_t i = 0; i < got.size(); ++i) {
        const float have = num::bf16_to_float(got[i]), expected = num::bf16_to_float(num::float_to_bf16(want[i]));
        const bool of_step = static_cast<std::int64_t>(i) < rows * cols;
        if (!of_step) {
          ASSERT_TRUE(over ? have == 0.0f : have != have) << what << " wrote behind the step's rows, " << i;
        } else {
          ASSERT_TRUE(test::same_bits(have, expected))
              << what << " y " << i << ": " << have << ", expected " << expected;
        }
      }
    }
  }

  cpu::Parallel parallel_{1};
  cpu::Isa isa_ = cpu::available_isas().front();
};

TEST_P(CudaEightsOps, RmsNorm) {
  for (const std::int64_t cols : {528, 1024, 2048, 2064, 4096, 5104, 5120}) {
    check(RowsOp::rms_norm, 1, cols, 0);
    check(RowsOp::rms_norm, 1, cols, 8);
  }
}
TEST_P(CudaEightsOps, GatedRmsNorm) {
  for (const std::int64_t heads : {1, 2, 3, 16, 17, 48}) {
    check(RowsOp::gated_rms_norm, heads, 128, 0);
    check(RowsOp::gated_rms_norm, heads, 128, 8);
  }
}
TEST_P(CudaEightsOps, SwiGlu) {
  for (const std::int64_t cols : {8, 248, 256, 264, 2048, 2056, 17408}) {
    check(RowsOp::swiglu, 1, cols, 0);
    check(RowsOp::swiglu, 1, cols, 8);
  }
}
INSTANTIATE_TEST_SUITE_P(T, CudaEightsOps, testing::Values(0, 1, 2, 5, 17, 61, 62, 129),
                         testing::PrintToStringParamName());

TEST_F(CudaEights, SaysWhyItDoesNotServe) {
  std::byte* const at = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 20);
  const auto view = [&](DType type, std::int64_t stride, std::int32_t cols) {
    return cuda::View{at, type, Rows::tokens, stride, cols, nullptr};
  };
  const auto* const weight = reinterpret_cast<const float*>(at);
  cuda::Launch launch;
  launch.max_rows = 4;
  launch.multiprocessors = 132;
  const auto swiglu = [&](std::int64_t stride, std::int32_t cols, DType type, const cuda::PackArgs* pack) {
    const cuda::View v = view(type, stride, cols);
    return cuda::swiglu_eights(launch, {v, v, v}, pack);
  };
  const cuda::View v = view(DType::bf16, 64, 64), nowhere{nullptr, DType::bf16, Rows::tokens, 64, 64, nullptr};
  EXPECT_EQ(cuda::swiglu_eights(launch, {nowhere, v, v}, nullptr, cuda::Serve::ask), nullptr);  // nothing is launched
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_STREQ(swiglu(72, 68, DType::bf16, nullptr), cuda::kNotEights);
  EXPECT_STREQ(swiglu(68, 64, DType::bf16, nullptr), cuda::kNotEights);
  EXPECT_STREQ(swiglu(64, 64, DType::f32, nullptr), cuda::kNotEights);
  const cuda::PackArgs fp4{{Kind::nvfp4_static, 1.0f}, view(DType::u8, 20, 36), view(DType::u8, 4, 4)};
  EXPECT_STREQ(swiglu(72, 72, DType::bf16, &fp4), cuda::kNotEights);  // columns come in multiples of 16 there
  const cuda::PackArgs token{{Kind::fp8_token, 0}, view(DType::u8, 40000, 40000), view(DType::f32, 1, 1)};
  EXPECT_STREQ(swiglu(40000, 40000, DType::bf16, &token), cuda::kTooLong);
  launch.max_rows = cuda::kMostRowsOfGrid + 1;
  EXPECT_STREQ(swiglu(64, 64, DType::bf16, nullptr), cuda::kTooManyRows);
  launch.max_rows = 4;
  const cuda::View h = view(DType::bf16, 5120, 5120), f = view(DType::f32, 5120, 5120);
  EXPECT_STREQ(cuda::rms_norm_eights(launch, {h, weight, 1e-6f, h}, nullptr), cuda::kNotEights);
  EXPECT_STREQ(cuda::rms_norm_eights(launch, {f, weight + 1, 1e-6f, h}, nullptr), cuda::kNotEights);
  const cuda::View short_f = view(DType::f32, 512, 512), short_h = view(DType::bf16, 512, 512);
  EXPECT_TRUE(cuda::rms_norm_eights(launch, {short_f, weight, 1e-6f, short_h}, nullptr) != nullptr);
  EXPECT_TRUE(cuda::gated_rms_norm_eights(launch, {h, h, weight, 64, 1e-6f, h}, nullptr) != nullptr);
}

}  // namespace
}  // namespace nibble
