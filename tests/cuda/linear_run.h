// linear_run.h: packs a weight on the device, runs Linear on it and compares with reference.h, for any path.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "backends/cuda/ops/linear.h"
#include "tests/cuda/reference.h"
#include "tests/cuda/step_on_device.h"
#include "tests/support/buffers.h"

namespace nibble::test {

struct PinnedMemory {
  explicit PinnedMemory(std::size_t bytes) { cuda_ok(cudaMallocHost(&data, bytes)); }
  ~PinnedMemory() { cudaFreeHost(data); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  void* data = nullptr;
};

// A weight packed through staging memory of `staging` bytes.
struct OnDevice {
  OnDevice(const Weight& w, std::size_t staging, cuda::ArchPath path = cuda::ArchPath::sm90, bool fp8_unit = false)
      : arena(cuda::image_bytes(w)) {
    const PinnedMemory host(staging);
    DeviceArray<std::byte> device(staging);
    image = cuda::pack_weight(w, arena.raw(),
                              {static_cast<std::byte*>(host.data), device.raw(), staging, nullptr}, path, fp8_unit);
    finish_device();
    cuda::look_at_packed(image);
    EXPECT_EQ(device.damage(), "");
  }
  DeviceArray<std::byte> arena;
  cuda::WeightImage image;
};

// The smallest that takes 64 rows at a time, twice that and a little, or plenty.
inline std::size_t staging_for(const Weight& w, std::size_t turn) {
  const std::size_t row = w.codes.size() / static_cast<std::size_t>(w.rows);
  const std::size_t least = row * 64;
  if (least > (1u << 22)) return 2 * least;
  return turn % 3 == 0 ? least : turn % 3 == 1 ? 2 * least + 600 : std::size_t{16} << 20;
}

inline int multiprocessors() {
  int count = 0;
  cuda_ok(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
  return count;
}
// Whether code for sm_90a or sm_120a runs there.
inline bool has_bulk_copies() {
  int major = 0, minor = 0;
  cuda_ok(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  cuda_ok(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
  return minor == 0 && (major == 9 || major == 12);
}
// Launch::sums of all launches: each must leave flags and counters as it found them.
inline std::byte* linear_sums() {
  static std::byte* const at = [] {
    void* p = nullptr;
    const std::size_t bytes = std::max(cuda::linear_sums_bytes(cuda::ArchPath::sm90, multiprocessors()),
                                       cuda::linear_sums_bytes(cuda::ArchPath::sm70, multiprocessors()));
    cuda_ok(cudaMalloc(&p, bytes));
    cuda_ok(cudaMemset(p, 0, bytes));
    return static_cast<std::byte*>(p);
  }();
  return at;
}

// plain: those that need no partial sums. two_blocks: tuned ones that take the card to have two multiprocessors, so
// that small cases too are cut, split and folded as large ones are.
enum class Kernels { plain, tuned, two_blocks };

template <class T>
std::vector<T> with_rows(std::vector<T> values, std::int64_t rows, std::int64_t all) {
  const std::size_t width = values.size() / static_cast<std::size_t>(rows);
  const std::size_t old = values.size();
  values.resize(width * static_cast<std::size_t>(all));
  if (values.size() > old) {
    std::memset(static_cast<void*>(values.data() + old), 0xFF, (values.size() - old) * sizeof(T));
  }
  return values;
}

// Of the path's two the tuned one serves wherever it can.
inline void expect_sm70_kernel(const cuda::Launch& to, const cuda::LinearArgs& a) {
  const bool plain = std::string(cuda::linear_kernel(to, a)).find("plain") != std::string::npos;
  const bool can = a.format.kind == Kind::none && a.weight.cols % 8 == 0 && a.x.stride % 8 == 0 &&
                   (a.weight.format != WeightFormat::fp8_e4m3 || a.weight.plain);
  EXPECT_EQ(plain, !can);
}
// A gap of kAligned - i is one that makes rows of codes and of byte scales multiples of 16, and 16 i more.
constexpr std::int64_t kAligned = -1;
inline std::int64_t gap_of(std::int64_t width, std::int64_t gap) {
  return gap >= 0 ? gap : (16 - width % 16) % 16 + 16 * (kAligned - gap);
}

// [T, N] widened, of an image of gate and up [T, N / 2]. The class has `most` rows; those past the input's are NaN and must stay untouched. Empty where the
// tile (of linear_tiles()) does not serve.
template <class Y>
std::vector<float> run_linear(const cuda::WeightImage& image, const ActivationFormat& format,
                              const LinearInput& x, std::int64_t most, std::int64_t gap,
                              cuda::ArchPath path, Kernels kernels = Kernels::tuned, int tile = -1) {
  const std::int64_t k = image.cols, n = image.gate_up ? image.rows / 2 : image.rows, across = (k + 127) / 128;
  const StepOnDevice step(plain_batch(std::vector<std::int32_t>(static_cast<std::size_t>(x.rows))));
  cuda::Launch to;
  to.step = step.device();
  to.max_rows = most;
  to.multiprocessors = kernels == Kernels::two_blocks ? 2 : multiprocessors();
  if (kernels != Kernels::plain) to.sums = linear_sums();
  cuda::LinearArgs args;
  args.format = format;
  args.weight = image;
  args.path = path;
  std::unique_ptr<DeviceMatrix<std::uint16_t>> values;
  std::unique_ptr<DeviceMatrix<std::uint8_t>> codes, bytes;
  std::unique_ptr<DeviceMatrix<float>> scales;
  std::unique_ptr<DeviceArray<std::int32_t>> exponents;
  if (format.kind == Kind::none) {
    values = std::make_unique<DeviceMatrix<std::uint16_t>>(with_rows(x.values, x.rows, most), most, k, gap);
    args.x = values->view();
    if (path == cuda::ArchPath::sm70) {
      exponents = std::make_unique<DeviceArray<std::int32_t>>(with_rows(x.exponents, x.rows, most));
      args.x.dtype = DType::f16;
      args.x.exponents = exponents->data();
    }
  } else {
    const std::int64_t width = format.kind == Kind::nvfp4_static ? k / 2 : k;
    codes = std::make_unique<DeviceMatrix<std::uint8_t>>(with_rows(x.codes, x.rows, most), most, width,
                                                         gap_of(width, gap));
    args.x = codes->view();
  }
  if (format.kind == Kind::nvfp4_static) {
    bytes = std::make_unique<DeviceMatrix<std::uint8_t>>(with_rows(x.byte_scales, x.rows, most), most,
                                                         k / 16, gap_of(k / 16, gap));
    args.x_scales = bytes->view();
  }
  if (format.kind == Kind::fp8_token || format.kind == Kind::fp8_token_group128) {
    scales = std::make_unique<DeviceMatrix<float>>(with_rows(x.scales, x.rows, most), most,
                                                   format.kind == Kind::fp8_token ? 1 : across, gap < 0 ? -gap : gap);
    args.x_scales = scales->view();
  }
  DeviceMatrix<Y> y(most, n, gap < 0 ? -gap : gap);
  args.y = y.view();
  if (path == cuda::ArchPath::sm70) expect_sm70_kernel(to, args);
  if (path == cuda::ArchPath::sm120 && format.kind == Kind::nvfp4_static && has_bulk_copies()) {
    const bool tiled = std::string(cuda::linear_kernel(to, args)).rfind("mma.m16n8k64 nvfp4, tiled", 0) == 0;
    EXPECT_EQ(tiled, args.x.stride % 16 == 0 && args.x_scales.stride % 16 == 0) << cuda::linear_kernel(to, args);
  }
  args.tile = tile;
  if (tile >= 0) {
    const std::vector<cuda::LinearTile> tiles = cuda::linear_tiles(to, args);
    const auto at = static_cast<std::size_t>(tile);
    if (at >= tiles.size() || !tiles[at].refusal.empty()) return {};
  }
  cuda::linear(to, args);
  finish_device();
  EXPECT_EQ(y.damage(), "");
  const std::vector<Y> raw = y.download();
  std::vector<float> out;
  for (std::size_t i = 0; i < raw.size(); ++i) {
    if (i >= static_cast<std::size_t>(x.rows * n)) {
      unsigned char b[sizeof(Y)];
      std::memcpy(b, &raw[i], sizeof b);
      EXPECT_EQ(b[0], 0xFF) << "a row past the step's count was written";
      if (b[0] != 0xFF) break;
    } else if constexpr (std::is_same_v<Y, float>) {
      out.push_back(raw[i]);
    } else {
      out.push_back(num::bf16_to_float(raw[i]));
    }
  }
  return out;
}

inline std::vector<float> run_linear(bool bf16, const cuda::WeightImage& image, const ActivationFormat& f,
                              const LinearInput& x, std::int64_t most, std::int64_t gap,
                              cuda::ArchPath path, Kernels kernels = Kernels::tuned, int tile = -1) {
  return bf16 ? run_linear<std::uint16_t>(image, f, x, most, gap, path, kernels, tile)
              : run_linear<float>(image, f, x, most, gap, path, kernels, tile);
}

// All of them in small cases, else the edges of tiles and some between.
inline std::vector<std::int64_t> columns_for(const Case& s) {
  const std::int64_t want = std::max<std::int64_t>(6, 3'000'000 / (s.t * s.k));
  std::vector<std::int64_t> columns;
  if (want >= s.n) {
    for (std::int64_t n = 0; n < s.n; ++n) columns.push_back(n);
    return columns;
  }
  Hash random{static_cast<std::uint64_t>(s.n * 31 + s.k)};
  for (const std::int64_t n : {std::int64_t{0}, s.n - 1}) columns.push_back(n);
  while (static_cast<std::int64_t>(columns.size()) < want) columns.push_back(random() % s.n);
  return columns;
}

inline void expect_same(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_TRUE(same_bits(a[i], b[i])) << what << ", element " << i << ": " << a[i] << " and " << b[i];
  }
}

// Whatever class and tile, with and without a split, and with rows of y that are aligned and that are not.
inline void check_sm70_tuned(const cuda::WeightImage& image, const Case& s, const LinearInput& x,
                             const std::vector<float>& y, std::int64_t aligned) {
  for (const std::int64_t most : {std::int64_t{8}, std::int64_t{16}, std::int64_t{32}, std::int64_t{64}, s.t + 100}) {
    if (most < s.t || most % 64 == s.t % 64) continue;
    for (const Kernels kernels : {Kernels::tuned, Kernels::plain}) {
      if (kernels == Kernels::plain && (most <= 32 || image.segments.count == 1)) continue;
      expect_same(y, run_linear<float>(image, {}, x, most, aligned, cuda::ArchPath::sm70, kernels), "a tuned class");
    }
  }
}

inline void check_case(const Combination& c, Case s, std::size_t index, cuda::ArchPath path = cuda::ArchPath::sm90) {
  if (path == cuda::ArchPath::sm70) s.bf16_output = false;  // float32 always
  SCOPED_TRACE(case_text(c, s));
  const OwnedWeight w(c, s, kWeightSeed + index);
  const OnDevice packed(w.weight, staging_for(w.weight, index), path);
  ASSERT_EQ(packed.arena.damage(), "");
  const ActivationFormat format = format_of(c.kind);
  const LinearInput x = random_input(c, s, kInputSeed + index, path);
  const std::vector<float> y = run_linear(s.bf16_output, packed.image, format, x, s.t, s.gap, path);

  const std::vector<std::int64_t> columns = columns_for(s);
  std::vector<float> expected;
  mirror_linear(w.weight, format, x, columns, expected, path);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::size_t row = i / columns.size();
    const std::int64_t n = columns[i % columns.size()];
    const float want = s.bf16_output ? num::bf16_to_float(num::float_to_bf16(expected[i])) : expected[i];
    const float found = y[row * static_cast<std::size_t>(s.n) + static_cast<std::size_t>(n)];
    ASSERT_TRUE(same_bits(want, found))
        << "y[" << row << ", " << n << "]: expected " << want << ", found " << found << std::hexfloat
        << " (" << want << ", " << found << ")";
  }
  // Classes of more rows take other kernels; the tuned ones of sm90 and sm70 ask for aligned rows.
  const std::int64_t aligned = (8 - s.k % 8) % 8 + 8 * static_cast<std::int64_t>(index % 2);
  for (const std::int64_t most : {s.t + 1, s.t + 8, s.t + 16, s.t + 64}) {
    if (index % 4 != 0 && most != s.t + 64) continue;
    expect_same(y, run_linear(s.bf16_output, packed.image, format, x, most, 1 + s.gap, path), "a larger class");
    if (path == cuda::ArchPath::sm120) continue;
    expect_same(y, run_linear(s.bf16_output, packed.image, format, x, most, aligned, path), "a larger class, aligned");
  }
  if (path == cuda::ArchPath::sm70 && format.kind == Kind::none && s.k % 8 == 0) {
    check_sm70_tuned(packed.image, s, x, y, aligned);
  }
  if (path == cuda::ArchPath::sm90 && format.kind == Kind::none) {
    for (const std::int64_t most : {s.t, s.t + 40, 4 * s.t}) {
      expect_same(y, run_linear(s.bf16_output, packed.image, format, x, most, aligned, path, Kernels::two_blocks),
                  "two blocks");
    }
    if (index % 3 == 0) {
      for (int tile = 0; tile < cuda::linear_tile_count(); ++tile) {
        const std::vector<float> of_tile =
            run_linear(s.bf16_output, packed.image, format, x, s.t, aligned, path, Kernels::two_blocks, tile);
        if (of_tile.empty()) continue;
        expect_same(y, of_tile, ("tile " + std::to_string(tile)).c_str());
      }
    }
  }
  if (path == cuda::ArchPath::sm120 && format.kind == Kind::nvfp4_static) {
    const std::int64_t rows = kAligned - static_cast<std::int64_t>(index % 2);
    for (const std::int64_t most : {s.t, s.t + 40, 4 * s.t}) {
      for (const Kernels kernels : {Kernels::tuned, Kernels::two_blocks}) {
        expect_same(y, run_linear(s.bf16_output, packed.image, format, x, most, rows, path, kernels), "tiled");
      }
    }
  }
  for (const std::int64_t row : {std::int64_t{0}, s.t / 2, s.t - 1}) {
    const auto first = y.begin() + row * s.n;
    expect_same({first, first + s.n},
                run_linear(s.bf16_output, packed.image, format, row_of(x, row), 1, s.gap, path), "a row alone");
  }
}

}  // namespace nibble::test
