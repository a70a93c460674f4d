// Row-wise ops on the device against the CPU's, by bytes. bf16 buffers: inputs that bf16 holds, the
// CPU's results rounded once.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <type_traits>

#include "backends/cpu/ops/quantize.h"
#include "backends/cpu/ops/rowwise.h"
#include "backends/cuda/ops/rowwise.h"
#include "core/numerics/codecs.h"
#include "tests/cases/rows_cases.h"
#include "tests/cuda/device_buffer.h"
#include "tests/cuda/step_on_device.h"
#include "tests/support/buffers.h"

namespace nibble {
namespace {

using test::DeviceArray;
using test::DeviceMatrix;
using test::Kind;
using test::put_edges;
using Half = std::uint16_t;  // bf16

constexpr std::int64_t kBehind = 3;  // rows of the class beyond those of the step
constexpr float kEps = test::kNormEps;

template <class E>
E encode(float v) {
  if constexpr (std::is_same_v<E, float>) {
    return v;
  } else {
    return num::float_to_bf16(v);
  }
}
float decode(float v) {
  return v;
}
float decode(Half v) {
  return num::bf16_to_float(v);
}

// Magnitudes over many binades, with zeros of both signs; every seventh row has NaN and infinities.
float invented(std::mt19937& random, std::int64_t row, std::int64_t col) {
  const auto pick = random() % 64;
  if (pick == 0) return random() % 2 ? 0.0f : -0.0f;
  if (pick == 1) return 1e-40f;
  if (row % 7 == 5 && col % 11 == 0) {
    const float odd[] = {std::numeric_limits<float>::quiet_NaN(),
                         std::numeric_limits<float>::infinity(),
                         -std::numeric_limits<float>::infinity(), 3e38f};
    return odd[random() % 4];
  }
  return std::normal_distribution<float>()(random) *
         std::exp2(static_cast<float>(random() % 12) - 6.0f);
}

// A device matrix and the same values on the host.
template <class E>
struct Input {
  std::vector<float> host;
  DeviceMatrix<E> device;
  std::int64_t cols;

  Input(std::mt19937& random, std::int64_t rows, std::int64_t cols_, std::int64_t gap)
      : host(static_cast<std::size_t>((rows + kBehind) * cols_)),
        device(rows + kBehind, cols_, gap),
        cols(cols_) {
    std::vector<E> values;
    for (std::size_t i = 0; i < host.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      values.push_back(encode<E>(invented(random, at / cols, at % cols)));
      host[i] = decode(values.back());
    }
    device.upload(values);
  }
  cpu::In in() const { return {host.data(), cols}; }
};

struct World {
  explicit World(std::int64_t rows, std::vector<std::int32_t> output_rows = {})
      : step(batch(rows, std::move(output_rows))) {
    launch.step = step.device();
    launch.max_rows = rows + kBehind;
    launch.max_outputs = step.host().outputs + kBehind;
    launch.max_ranges = 1;
    launch.multiprocessors = 132;
  }
  static Batch batch(std::int64_t rows, std::vector<std::int32_t> output_rows) {
    Batch b = test::plain_batch(std::vector<std::int32_t>(static_cast<std::size_t>(rows)));
    b.output_rows = std::move(output_rows);
    return b;
  }
  test::StepOnDevice step;
  cuda::Launch launch;
};

// Rows [0, rows) of y equal `want`; those behind are as they were (`before`, or never written).
template <class E>
void expect_rows(DeviceMatrix<E>& y, std::int64_t rows, const std::vector<float>& want,
                 const std::string& what, const std::vector<float>* before = nullptr) {
  test::finish_device();
  ASSERT_EQ(y.damage(), "") << what;
  const std::vector<E> got = y.download();
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / y.cols();
    const float have = decode(got[i]);
    if (row >= rows) {
      ASSERT_TRUE(before != nullptr ? test::same_bits(have, (*before)[i]) : have != have)
          << what << " wrote row " << row << " of " << rows;
      continue;
    }
    const float expected = decode(encode<E>(want[i]));
    ASSERT_TRUE(test::same_bits(have, expected))
        << what << " y[" << row << ", " << static_cast<std::int64_t>(i) % y.cols() << "] = " << have
        << ", expected " << expected;
  }
}

std::string label(const char* op, std::int64_t rows, std::int64_t cols, std::int64_t gap) {
  return std::string(op) + " T " + std::to_string(rows) + " cols " + std::to_string(cols) +
         " gap " + std::to_string(gap);
}

template <class F>
void each_type(F f) {
  f(float{});
  f(Half{});
}

class CudaRows : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { NIBBLE_NEEDS_DEVICE(); }
  std::int64_t rows() const { return GetParam(); }
  std::mt19937 random_{static_cast<unsigned>(GetParam())};
  cpu::Parallel parallel_{1};
  cpu::Isa isa_ = cpu::available_isas().front();

  std::vector<float> weights(std::int64_t n) {
    std::vector<float> w;
    for (std::int64_t i = 0; i < n; ++i)
      w.push_back(1 + std::normal_distribution<float>(0, 0.3f)(random_));
    return w;
  }
  std::vector<float> output(std::int64_t cols) const {
    return std::vector<float>(static_cast<std::size_t>((rows() + kBehind) * cols));
  }

  template <class X, class Y>
  void rms_norm(std::int64_t cols, std::int64_t gap) {
    const std::string what = label("rms_norm", rows(), cols, gap);
    World world(rows());
    Input<X> x(random_, rows(), cols, gap);
    DeviceMatrix<Y> y(rows() + kBehind, cols, gap + 1);
    const std::vector<float> w = weights(cols);
    DeviceArray<float> weight(w);
    std::vector<float> want = output(cols);
    cpu::rms_norm(isa_, parallel_, rows(), cols, x.in(), w.data(), kEps, {want.data(), cols});
    cuda::rms_norm(world.launch, {x.device.view(), weight.data(), kEps, y.view()});
    expect_rows(y, rows(), want, what);
    if constexpr (std::is_same_v<X, Y>) {
      cuda::rms_norm(world.launch, {x.device.view(), weight.data(), kEps, x.device.view()});
      expect_rows(x.device, rows(), want, what + " in place", &x.host);
    }
  }

  template <class X, class Z, class Y>
  void gated_rms_norm(std::int32_t heads, std::int32_t group, std::int64_t gap) {
    const std::int64_t cols = heads * group;
    const std::string what = label("gated_rms_norm", rows(), cols, gap);
    World world(rows());
    Input<X> x(random_, rows(), cols, gap);
    Input<Z> z(random_, rows(), cols, gap + 2);
    DeviceMatrix<Y> y(rows() + kBehind, cols, gap + 1);
    const std::vector<float> w = weights(group);
    DeviceArray<float> weight(w);
    std::vector<float> want = output(cols);
    cpu::gated_rms_norm(isa_, parallel_, rows(), heads, group, x.in(), z.in(), w.data(), kEps,
                        {want.data(), cols});
    cuda::gated_rms_norm(world.launch,
                         {x.device.view(), z.device.view(), weight.data(), group, kEps, y.view()});
    expect_rows(y, rows(), want, what);
    if constexpr (std::is_same_v<Z, Y>) {
      cuda::gated_rms_norm(world.launch, {x.device.view(), z.device.view(), weight.data(), group,
                                          kEps, z.device.view()});
      expect_rows(z.device, rows(), want, what + " over z", &z.host);
    }
  }

  template <class A, class B, class Y>
  void add_and_swiglu(std::int64_t cols, std::int64_t gap) {
    World world(rows());
    for (const bool swiglu : {false, true}) {
      const std::string what = label(swiglu ? "swiglu" : "add", rows(), cols, gap);
      Input<A> a(random_, rows(), cols, gap);
      Input<B> b(random_, rows(), cols, gap);
      DeviceMatrix<Y> y(rows() + kBehind, cols, gap);
      std::vector<float> want = output(cols);
      const auto on_device = [&](const cuda::View& to) {
        if (swiglu) {
          cuda::swiglu(world.launch, {a.device.view(), b.device.view(), to});
        } else {
          cuda::add(world.launch, {a.device.view(), b.device.view(), to});
        }
      };
      (swiglu ? cpu::swiglu : cpu::add)(isa_, parallel_, rows(), cols, a.in(), b.in(),
                                        {want.data(), cols});
      on_device(y.view());
      expect_rows(y, rows(), want, what);
      if constexpr (std::is_same_v<B, Y>) {
        on_device(b.device.view());
        expect_rows(b.device, rows(), want, what + " over b", &b.host);
      }
    }
  }

  // The gate lies behind the queries of its head, in one row.
  template <class X, class Y>
  void sigmoid_gate(std::int32_t heads, std::int32_t dim, std::int64_t gap) {
    const std::int64_t cols = heads * dim, gate_stride = 2 * dim;
    const std::string what = label("sigmoid_gate", rows(), cols, gap);
    World world(rows());
    Input<X> x(random_, rows(), cols, gap), gate(random_, rows(), 2 * cols, gap);
    DeviceMatrix<Y> y(rows() + kBehind, cols, gap);
    std::vector<float> want = output(cols);
    cpu::sigmoid_gate(isa_, parallel_, rows(), heads, dim, x.in(),
                      {gate.host.data() + dim, 2 * cols}, gate_stride, {want.data(), cols});
    cuda::View of_gate = gate.device.view();
    of_gate.data += static_cast<std::size_t>(dim) * sizeof(X);
    of_gate.cols -= dim;
    cuda::sigmoid_gate(world.launch, {x.device.view(), of_gate, heads, dim, gate_stride, y.view()});
    expect_rows(y, rows(), want, what);
    ASSERT_EQ(gate.device.damage(), "");
    if constexpr (std::is_same_v<X, Y>) {
      cuda::sigmoid_gate(world.launch,
                         {x.device.view(), of_gate, heads, dim, gate_stride, x.device.view()});
      expect_rows(x.device, rows(), want, what + " in place", &x.host);
    }
  }

  template <class X, class Y>
  void gather_rows(std::int64_t cols, std::int64_t gap) {
    std::vector<std::int32_t> picked;
    for (std::int64_t r = 0; r < rows(); r += 1 + static_cast<std::int64_t>(random_() % 3)) {
      picked.push_back(static_cast<std::int32_t>(r));
    }
    World world(rows(), picked);
    Input<X> x(random_, rows(), cols, gap);
    const auto outputs = static_cast<std::int64_t>(picked.size());
    DeviceMatrix<Y> y(outputs + kBehind, cols, gap);
    std::vector<float> want(static_cast<std::size_t>((outputs + kBehind) * cols));
    cpu::gather_rows(parallel_, x.in(), picked.data(), outputs, cols, {want.data(), cols});
    cuda::gather_rows(world.launch, {x.device.view(), y.view(Rows::outputs)});
    expect_rows(y, outputs, want, label("gather_rows", rows(), cols, gap));
  }

  template <class X>
  void quantize(ActivationFormat format, std::int64_t cols, std::int64_t gap);
};

TEST_P(CudaRows, RmsNorm) {
  for (const std::int64_t cols : test::kNormCols) {
    each_type([&](auto x) {
      each_type([&](auto y) { rms_norm<decltype(x), decltype(y)>(cols, cols % 2 ? 3 : 4); });
    });
  }
}

TEST_P(CudaRows, GatedRmsNorm) {
  for (const std::int32_t group : test::kNormGroups) {
    for (const std::int32_t heads : test::kNormHeads) {
      gated_rms_norm<float, float, float>(heads, group, 0);
      gated_rms_norm<Half, Half, Half>(heads, group, 5);
      gated_rms_norm<float, Half, Half>(heads, group, 1);
    }
  }
}

TEST_P(CudaRows, AddAndSwiGlu) {
  for (const std::int64_t cols : test::kElementwiseCols) {
    for (const std::int64_t gap : {0, 3, 4}) {
      add_and_swiglu<float, float, float>(cols, gap);
      add_and_swiglu<Half, Half, Half>(cols, gap);
      add_and_swiglu<Half, float, float>(cols, gap);
      add_and_swiglu<float, float, Half>(cols, gap);
    }
  }
}

TEST_P(CudaRows, SigmoidGate) {
  for (const std::int32_t dim : test::kGateDims) {
    for (const std::int32_t heads : test::kGateHeads) {
      sigmoid_gate<float, float>(heads, dim, heads % 2 ? 3 : 4);
      sigmoid_gate<Half, Half>(heads, dim, heads % 2 ? 3 : 4);
      sigmoid_gate<float, Half>(heads, dim, 0);
    }
  }
}

TEST_P(CudaRows, GatherRows) {
  for (const std::int64_t cols : test::kGatherCols) {
    for (const std::int64_t gap : {0, 3}) {
      gather_rows<float, float>(cols, gap);
      gather_rows<Half, Half>(cols, gap);
      gather_rows<float, Half>(cols, gap);
    }
  }
}


template <class X>
void CudaRows::quantize(ActivationFormat format, std::int64_t cols, std::int64_t gap) {
  const std::string what = label(activation_format_name(format.kind), rows(), cols, gap);
  const bool nvfp4 = format.kind == Kind::nvfp4_static;
  const std::int64_t all = rows() + kBehind, code_cols = nvfp4 ? cols / 2 : cols,
                     scale_cols = nvfp4                            ? cols / 16
                                  : format.kind == Kind::fp8_token ? 1
                                                                   : (cols + 127) / 128;
  World world(rows());
  Input<X> x(random_, rows(), cols, gap);
  put_edges(x.host, cols);
  std::vector<X> values;
  for (float& v : x.host) {
    values.push_back(encode<X>(v));
    v = decode(values.back());
  }
  x.device.upload(values);
  DeviceMatrix<std::uint8_t> codes(all, code_cols, gap), byte_scales(all, scale_cols, 1);
  DeviceMatrix<float> float_scales(all, scale_cols, 1);
  const auto size = [&](std::int64_t n) { return static_cast<std::size_t>(all * n); };
  std::vector<std::uint8_t> want(size(code_cols), 0xFF), want_bytes(size(scale_cols), 0xFF);
  std::vector<float> want_floats(size(scale_cols));
  std::memset(want_floats.data(), 0xFF, want_floats.size() * sizeof(float));
  cpu::quantize(isa_, parallel_,
                {rows(), cols, format, x.host.data(), cols, want.data(), code_cols,
                 nvfp4 ? static_cast<void*>(want_bytes.data()) : want_floats.data(), scale_cols});
  cuda::View scales = nvfp4 ? byte_scales.view() : float_scales.view();
  if (format.kind == Kind::fp8_tensor_static) scales = {};
  cuda::quantize(world.launch, {x.device.view(), format, codes.view(), scales});
  test::finish_device();
  ASSERT_EQ(codes.damage() + byte_scales.damage() + float_scales.damage(), "") << what;
  const std::vector<float> got_floats = float_scales.download();
  for (std::size_t i = 0; i < got_floats.size(); ++i) {
    ASSERT_EQ(num::bit_cast<std::uint32_t>(got_floats[i]), num::bit_cast<std::uint32_t>(want_floats[i]))
        << what << " scale " << i << ": " << got_floats[i] << " and " << want_floats[i];
  }
  ASSERT_EQ(byte_scales.download(), want_bytes) << what;
  const std::vector<std::uint8_t> got = codes.download();
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], want[i]) << what << " code " << i << " of x " << x.host[nvfp4 ? 2 * i : i];
  }
}

TEST_P(CudaRows, Quantize) {
  for (const ActivationFormat& format : test::kQuantizeFormats) {
    for (const std::int64_t cols : test::kQuantizeCols) {
      if (format.kind == Kind::nvfp4_static && cols % 16 != 0) continue;
      for (const std::int64_t gap : {0, 3}) {
        quantize<float>(format, cols, gap);
        quantize<Half>(format, cols, gap);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(T, CudaRows,
                         testing::Values(0, 1, 2, 3, 5, 8, 16, 17, 31, 63, 64, 65, 127, 128, 129,
                                         257, 1024),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace nibble
