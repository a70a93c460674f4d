// Images of gate and up, and linear layers that end in SwiGLU, against two linear layers and SwiGlu, byte by byte.
#include <gtest/gtest.h>

#include "backends/cuda/device/weight_decode.cuh"
#include "backends/cuda/ops/rowwise.h"
#include "tests/cuda/linear_run.h"

namespace nibble::test {
namespace {

using cuda::ArchPath;
using Half = std::uint16_t;  // bf16

// No device.
TEST(GateUpRows, TakeTurnsInEights) {
  for (const std::int64_t half : {8, 16, 40, 464, 2880}) {
    std::vector<int> seen(static_cast<std::size_t>(2 * half));
    for (std::int64_t n = 0; n < 2 * half; ++n) {
      const std::int64_t row = cuda::gate_up_row(n, half);
      ASSERT_TRUE(row >= 0 && row < 2 * half) << n << " of " << half;
      ++seen[static_cast<std::size_t>(row)];
      EXPECT_EQ(row < half, n / 8 % 2 == 0) << n << " of " << half;
    }
    EXPECT_EQ(seen, std::vector<int>(seen.size(), 1)) << half;
    for (std::int64_t i = 0; i < half; ++i) {  // a lane's rows g and g + 8 of unit i / 8
      const std::int64_t n = i / 8 * 16 + i % 8;
      EXPECT_EQ(cuda::gate_up_row(n, half), i);
      EXPECT_EQ(cuda::gate_up_row(n + 8, half), half + i);
    }
  }
}

// No device.
TEST(GateUpImage, RefusesWhatDoesNotFit) {
  const Combination c{WeightFormat::fp8_e4m3, ScaleLayout::row, Kind::none};
  const auto bytes = [&](auto change) {
    OwnedWeight gate(c, {24, 32, 1, false, false, 0}, 1), up(c, {24, 32, 1, false, false, 0}, 2);
    change(gate.weight, up.weight);
    return cuda::gate_up_bytes(gate.weight, up.weight);
  };
  EXPECT_EQ(bytes([](Weight&, Weight&) {}), 64u * 64 + 64 * 4 + 256);
  EXPECT_ANY_THROW(bytes([](Weight&, Weight& up) { up.rows = 16; }));
  EXPECT_ANY_THROW(bytes([](Weight&, Weight& up) { up.cols = 16; }));
  EXPECT_ANY_THROW(bytes([](Weight&, Weight& up) { up.format = WeightFormat::bf16; }));
  EXPECT_ANY_THROW(bytes([](Weight&, Weight& up) { up.activation.kind = Kind::fp8_token; }));
  EXPECT_ANY_THROW(bytes([](Weight&, Weight& up) { up.scales.pop_back(); }));
  EXPECT_ANY_THROW(bytes([](Weight& gate, Weight& up) { gate.rows = up.rows = 20; }));
  for (const bool of_up : {false, true}) {
    EXPECT_ANY_THROW(bytes([of_up](Weight& gate, Weight& up) {
      Weight& w = of_up ? up : gate;
      w.scale_layout = ScaleLayout::block128;
      w.scales = {1};
    }));
  }
}

struct GateUpOnDevice {
  GateUpOnDevice(const Weight& gate, const Weight& up, std::size_t staging, ArchPath path)
      : arena(cuda::gate_up_bytes(gate, up)) {
    const PinnedMemory host(staging);
    DeviceArray<std::byte> device(staging);
    image = cuda::pack_gate_up(gate, up, arena.raw(),
                               {static_cast<std::byte*>(host.data), device.raw(), staging, nullptr}, path);
    finish_device();
    cuda::look_at_packed(image);
    EXPECT_EQ(device.damage() + arena.damage(), "");
  }
  DeviceArray<std::byte> arena;
  cuda::WeightImage image;
};

// Formats, and inputs that they meet. Of x, scales that enter segment by segment too.
std::vector<Combination> gate_up_combinations() {
  std::vector<Combination> all;
  for (const Combination& c : combinations()) {
    if (c.layout != ScaleLayout::block128) all.push_back(c);
  }
  return all;
}

class GateUp : public testing::TestWithParam<Combination> {
 protected:
  void SetUp() override { NIBBLE_NEEDS_DEVICE(); }
};
INSTANTIATE_TEST_SUITE_P(All, GateUp, testing::ValuesIn(gate_up_combinations()),
                         [](const auto& info) { return combination_name(info.param); });

// Both rows of scales, one for each row.
std::vector<float> row_scales(const Weight& w) {
  if (w.scale_layout == ScaleLayout::row) return w.scales;
  return std::vector<float>(static_cast<std::size_t>(w.rows), w.scales.at(0));
}
template <class T>
std::vector<T> in_turns(std::span<const T> gate, std::span<const T> up, std::int64_t half) {
  const auto width = static_cast<std::int64_t>(gate.size()) / half;
  std::vector<T> all;
  for (std::int64_t n = 0; n < 2 * half && width > 0; ++n) {
    const std::span<const T> from = n / 8 % 2 == 0 ? gate : up;
    const auto row = from.begin() + (n / 16 * 8 + n % 8) * width;
    all.insert(all.end(), row, row + width);
  }
  return all;
}

// The image is that of one weight whose rows were put in turns on the host.
TEST_P(GateUp, ImageIsThatOfRowsInTurns) {
  const Combination c = GetParam();
  std::size_t turn = 0;
  for (const ArchPath path : {ArchPath::sm90, ArchPath::sm120}) {
    for (const std::int64_t half : {8, 24, 32, 40, 464, 1000}) {
      for (const std::int64_t k : {16, 96, 1040}) {
        const Case s{half, k, 1, turn % 3 == 2, true, 0};
        const OwnedWeight gate(c, s, 10 + turn), up(c, s, 20 + turn);
        Weight both = gate.weight;
        both.rows = 2 * half;
        const std::vector<std::byte> codes = in_turns<std::byte>(gate.codes, up.codes, half),
                                     scales = in_turns<std::byte>(gate.block_scales, up.block_scales, half);
        both.codes = codes;
        both.block_scales = scales;
        if (c.layout != ScaleLayout::none) {
          both.scale_layout = ScaleLayout::row;
          both.scales = in_turns<float>(row_scales(gate.weight), row_scales(up.weight), half);
        }
        const std::size_t staging = staging_for(gate.weight, turn++);
        const OnDevice expected(both, staging, path);
        const GateUpOnDevice found(gate.weight, up.weight, staging, path);
        ASSERT_EQ(found.arena.size(), expected.arena.size());
        // Between parts that end off a multiple of 256 nothing is written.
        ASSERT_EQ(found.arena.download(), expected.arena.download()) << case_text(c, s);
        EXPECT_TRUE(found.image.gate_up);
        EXPECT_EQ(found.image.rows, 2 * half);
        EXPECT_EQ(found.image.plain, expected.image.plain);
        EXPECT_EQ(found.image.segments.count, num::linear_segments(half, k, false).count);
      }
    }
  }
}

std::vector<Half> halves(const std::vector<float>& values) {
  std::vector<Half> all;
  for (const float v : values) all.push_back(num::float_to_bf16(v));
  return all;
}
std::vector<float> swiglu_of(const std::vector<float>& gate, const std::vector<float>& up, std::int64_t rows,
                             std::int64_t cols) {
  const StepOnDevice step(plain_batch(std::vector<std::int32_t>(static_cast<std::size_t>(rows))));
  cuda::Launch to;
  to.step = step.device();
  to.max_rows = rows;
  DeviceMatrix<Half> g(halves(gate), rows, cols), u(halves(up), rows, cols), y(rows, cols);
  cuda::swiglu(to, {g.view(), u.view(), y.view()});
  finish_device();
  EXPECT_EQ(y.damage(), "");
  std::vector<float> all;
  for (const Half v : y.download()) all.push_back(num::bf16_to_float(v));
  return all;
}

// `index`: seeds, gaps and which weight has special values.
void check(const Combination& c, const Case& s, std::size_t index, ArchPath path) {
  SCOPED_TRACE(case_text(c, s) + (path == ArchPath::sm120 ? " sm120" : ""));
  // Scales of gate and up differ, in one of four cases their layout as well.
  Combination of_up = c;
  if (index % 4 == 3 && c.layout == ScaleLayout::row) of_up.layout = ScaleLayout::tensor;
  const OwnedWeight gate(c, s, kWeightSeed + index), up(of_up, s, 2 * kWeightSeed + index);
  const OnDevice one(gate.weight, staging_for(gate.weight, 2), path), two(up.weight, staging_for(up.weight, 2), path);
  const GateUpOnDevice both(gate.weight, up.weight, staging_for(gate.weight, index), path);
  const ActivationFormat format = format_of(c.kind);
  const LinearInput x = random_input(c, s, kInputSeed + index, path);
  const std::vector<float> expected = swiglu_of(run_linear<Half>(one.image, format, x, s.t, s.gap, path),
                                                run_linear<Half>(two.image, format, x, s.t, s.gap, path), s.t, s.n);
  const auto same = [&](std::int64_t most, std::int64_t gap, Kernels kernels, int tile, const char* what) {
    const std::vector<float> y = run_linear<Half>(both.image, format, x, most, gap, path, kernels, tile);
    if (tile < 0 || !y.empty()) expect_same(expected, y, what);
  };
  // Rows of y at any distance; aligned ones meet the tuned kernels.
  for (const std::int64_t gap : {0, 8, 3}) {
    for (const std::int64_t most : {s.t, s.t + 1, s.t + 64}) same(most, gap, Kernels::tuned, -1, "a class");
  }
  same(s.t, 0, Kernels::plain, -1, "plain kernels");
  same(s.t + 64, 1, Kernels::plain, -1, "plain kernels of a larger class");
  if (path != ArchPath::sm90 || c.kind != Kind::none) return;
  for (const std::int64_t most : {s.t, s.t + 40, 4 * s.t}) same(most, 8, Kernels::two_blocks, -1, "two blocks");
  for (int tile = 0; tile < cuda::linear_tile_count(); ++tile) {
    for (const Kernels kernels : {Kernels::tuned, Kernels::two_blocks}) {
      same(s.t, 8 * (tile % 2), kernels, tile, ("tile " + std::to_string(tile)).c_str());
    }
  }
}

// Edges of kernel classes and tiles by tails of rows.
TEST_P(GateUp, LinearEqualsThreeOps) {
  constexpr std::int64_t kRows[] = {1, 8, 16, 17, 64, 65, 128, 129, 257}, kInner[] = {464, 8, 1856, 40, 2880},
                         kDepth[] = {96, 1040, 2880};
  std::size_t index = 0;
  for (const std::int64_t n : kInner) {
    for (const std::int64_t t : kRows) {
      const std::int64_t k = kDepth[(index + index / 9) % 3];
      const auto gap = 8 * static_cast<std::int64_t>(index % 2);
      check(GetParam(), {n, k, t, index % 3 == 2, true, gap}, index, ArchPath::sm90);
      if (HasFatalFailure()) return;
      ++index;
    }
  }
}

// As many segments as either weight has by itself: one more than both together would have.
TEST_P(GateUp, SegmentsAreThoseOfOneWeight) {
  const Combination c = GetParam();
  constexpr std::int64_t kInner = 7168, kDepth = 2064;
  static_assert(num::linear_segments(kInner, kDepth, false).count == 2 &&
                num::linear_segments(2 * kInner, kDepth, false).count == 1);
  std::size_t index = 2;
  for (const std::int64_t t : {1, 17, 65}) {
    check(c, {kInner, kDepth, t, false, true, 0}, index += 3, ArchPath::sm90);
    if (HasFatalFailure()) return;
  }
}

// Where mma.m16n8k16 serves on sm120, from images in either order of codes.
TEST_P(GateUp, Sm120EqualsThreeOps) {
  const Combination c = GetParam();
  if (c.format == WeightFormat::nvfp4 && c.kind == Kind::nvfp4_static) {
    const Case s{40, 96, 3, false, true, 0};
    const OwnedWeight gate(c, s, 1), up(c, s, 2);
    const GateUpOnDevice both(gate.weight, up.weight, staging_for(gate.weight, 0), ArchPath::sm120);
    // Refused for NVFP4 inputs, and codes in the FP4 unit's order serve unquantised ones.
    const LinearInput codes = random_input(c, s, 3, ArchPath::sm120);
    EXPECT_ANY_THROW(run_linear<Half>(both.image, format_of(c.kind), codes, s.t, 0, ArchPath::sm120));
    const OnDevice one(gate.weight, staging_for(gate.weight, 0), ArchPath::sm120),
        two(up.weight, staging_for(up.weight, 0), ArchPath::sm120);
    const LinearInput x = random_input({c.format, c.layout, Kind::none}, s, 3);
    const auto run = [&](const cuda::WeightImage& image, std::int64_t most) {
      return run_linear<Half>(image, {}, x, most, 0, ArchPath::sm120);
    };
    const std::vector<float> expected = swiglu_of(run(one.image, s.t), run(two.image, s.t), s.t, s.n);
    for (const std::int64_t most : {3, 16, 40, 100}) expect_same(expected, run(both.image, most), "k64");
    return;
  }
  std::size_t index = 0;
  for (const std::int64_t t : {1, 17, 129}) check(c, {464, 1040, t, t == 17, true, 3}, index++, ArchPath::sm120);
}

// Quick enough for tools that make kernels slow.
TEST(LinearSmallSwiGlu, EqualsThreeOps) {
  NIBBLE_NEEDS_DEVICE();
  std::size_t index = 0;
  for (const Combination& c : gate_up_combinations()) {
    if (c.layout == ScaleLayout::row) continue;
    for (const std::int64_t t : {1, 17, 70}) check(c, {24, 144, t, t == 17, true, 0}, index++, ArchPath::sm90);
    // Two segments: split, or folded, or both where a tile is cut.
    if (c.kind == Kind::none) check(c, {104, 2064, 33, false, true, 0}, index++, ArchPath::sm90);
    if (HasFatalFailure()) return;
  }
}

TEST(GateUpKernels, SayWhyTheyDoNotServe) {
  NIBBLE_NEEDS_DEVICE();
  cuda::Launch to;
  to.max_rows = 64;
  to.multiprocessors = multiprocessors();
  to.sums = linear_sums();
  cuda::LinearArgs args;
  args.weight.gate_up = args.weight.plain = true;
  args.y.dtype = DType::bf16;
  const auto refusal = [&](const std::string& kernel) {
    for (const auto& [name, why] : cuda::linear_choices(to, args)) {
      if (name.rfind(kernel, 0) == 0) return why;
    }
    return std::string("no such kernel");
  };
  if (has_bulk_copies() && refusal("wgmma.m64k16") != "the card runs no code for sm_90a") {
    EXPECT_EQ(refusal("wgmma.m64k16").rfind("served, tile 128x64", 0), 0u) << refusal("wgmma.m64k16");
    args.y.stride = 3;
    EXPECT_EQ(refusal("wgmma.m64k16"), "rows of y are not aligned to 4 bytes");
    EXPECT_STREQ(cuda::linear_kernel(to, args), "mma.m16n8k16");
    args.y.stride = 0;
  }
  args.y.dtype = DType::f32;
  EXPECT_EQ(refusal("mma.m16n8k16"), "SwiGLU makes bf16");
  EXPECT_ANY_THROW(static_cast<void>(cuda::linear_kernel(to, args)));
  args.path = ArchPath::sm70;
  args.weight.values = DType::f16;
  args.format.kind = Kind::fp8_token;
  EXPECT_EQ(refusal("mma.m8n8k4 plain"), "it has no SwiGLU behind its sums");
}

}  // namespace
}  // namespace nibble::test
