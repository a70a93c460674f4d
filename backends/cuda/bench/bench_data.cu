#include "backends/cuda/bench/bench_data.h"

#include <algorithm>

#include "backends/cuda/check.h"
#include "core/checkpoint/synthetic.h"
#include "core/numerics/codecs.h"
#include "nibble/error.h"

namespace nibble::cuda {
namespace {

constexpr std::uint64_t kCopyBytes = 1u << 30;
constexpr std::int64_t kRoofSize = 8192;  // N, K and T of the product that shows the peer's rate
constexpr int kFillThreads = 256;

// Near normal, of variance scale^2: the sum of four uniform numbers.
__global__ __launch_bounds__(kFillThreads) void random_kernel(std::uint16_t* out, std::uint64_t count,
                                                            std::uint64_t seed, float scale, bool f16) {
  const std::uint64_t step = static_cast<std::uint64_t>(gridDim.x) * kFillThreads;
  const std::uint64_t first = static_cast<std::uint64_t>(blockIdx.x) * kFillThreads + threadIdx.x;
  for (std::uint64_t i = first; i < count; i += step) {
    std::uint64_t z = ((seed << 48) + i) * 0x9E3779B97F4A7C15u;  // splitmix64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    float sum = 0;
    for (int part = 0; part < 4; ++part) {
      sum += static_cast<float>(static_cast<std::int16_t>(z >> (16 * part)));
    }
    const float v = sum * (0.8660254f / 32768) * scale;
    out[i] = f16 ? num::float_to_f16(v) : num::float_to_bf16(v);
  }
}

// pack(staging memory), of a weight with so many columns.
template <class F>
WeightImage packed(std::int64_t cols, cudaStream_t stream, F pack) {
  // At least two groups of 64 rows of bf16.
  const std::uint64_t bytes = std::max<std::uint64_t>(64u << 20, 256 * static_cast<std::uint64_t>(cols));
  std::uint64_t made = 0;
  const Block host(Place::pinned, bytes, "packing a weight", made), device = allot(bytes, "packing");
  WeightImage image = pack(Staging{host.data(), device.data(), bytes, stream});
  check(cudaStreamSynchronize(stream), "packing a weight");
  look_at_packed(image);
  return image;
}
void drop(Weight& w) {
  w.codes = w.block_scales = {};
  w.owner.reset();
}

}  // namespace

Block allot(std::uint64_t bytes, const std::string& what) {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for free memory");
  if (bytes > free) {
    throw Error(ErrorCode::out_of_memory, "[cuda] bench ops: " + what + ": " + std::to_string(bytes) +
                                              " bytes of device memory are needed, " +
                                              std::to_string(free) + " are free");
  }
  std::uint64_t made = 0;
  return Block(Place::device, bytes, what.c_str(), made);
}

void fill_random(cudaStream_t stream, int multiprocessors, const Block& block, std::uint64_t count, std::uint64_t seed,
                 float scale, bool f16) {
  random_kernel<<<static_cast<unsigned>(multiprocessors * 8), kFillThreads, 0, stream>>>(
      reinterpret_cast<std::uint16_t*>(block.data()), count, seed, scale, f16);
  check(cudaGetLastError(), "filling with random numbers");
}

Weight random_weight(const std::string& format, const LinearShape& s) {
  const char* mix = format == "fp8" || format == "a8" ? "mlp-nvfp4-rest-fp8" : format.c_str();
  return *SyntheticSource(1, synthetic_policy(mix)).make_matrix("bench", s.n, s.k);
}

WeightImage pack_random(Weight& w, std::byte* arena, ArchPath path, cudaStream_t stream, bool fp8_unit) {
  w.materialize(w);
  const WeightImage image =
      packed(w.cols, stream, [&](const Staging& staging) { return pack_weight(w, arena, staging, path, fp8_unit); });
  drop(w);
  return image;
}
WeightImage pack_random_gate_up(Weight& gate, Weight& up, std::byte* arena, ArchPath path, cudaStream_t stream) {
  gate.materialize(gate);
  up.materialize(up);
  const WeightImage image =
      packed(gate.cols, stream, [&](const Staging& staging) { return pack_gate_up(gate, up, arena, staging, path); });
  drop(gate);
  drop(up);
  return image;
}

WeightImage moved(WeightImage image, std::uint64_t bytes) {
  image.codes += bytes;
  if (image.scales != nullptr) image.scales += bytes;
  if (image.block != nullptr) image.block += bytes / sizeof(float);
  if (image.alpha != nullptr) image.alpha += bytes / sizeof(float);
  return image;
}

double copy_rate(LaunchTimer& timer, int multiprocessors) {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for free memory");
  const std::uint64_t bytes = std::min<std::uint64_t>(kCopyBytes, free / 4 / kArenaAlign * kArenaAlign);
  const Block block = allot(2 * bytes, "measuring copies");
  fill_random(timer.stream(), multiprocessors, block, bytes, 1, 1, false);
  const LaunchTimes times = timer.measure(1, [&](int) {
    check(cudaMemcpyAsync(block.data() + bytes, block.data(), bytes, cudaMemcpyDeviceToDevice, timer.stream()),
          "copying on the device");
  });
  return 2.0 * static_cast<double>(bytes) / times.median;
}

double product_rate(CublasPeer& peer, LaunchTimer& timer, int multiprocessors, Block& workspace) {
  workspace = allot(CublasPeer::kWorkspaceBytes, "cuBLAS");
  peer.set_workspace(workspace.data());
  constexpr std::uint64_t kCount = kRoofSize * kRoofSize;
  const Block w = allot(2 * kCount, peer.text()), x = allot(2 * kCount, peer.text()), y = allot(2 * kCount, peer.text());
  fill_random(timer.stream(), multiprocessors, w, kCount, 2, 1.0f / 64, false);
  fill_random(timer.stream(), multiprocessors, x, kCount, 3, 1, false);
  const LaunchTimes times = timer.measure(
      1, [&](int) { peer.gemm(kRoofSize, kRoofSize, kRoofSize, w.data(), x.data(), y.data()); });
  return 2.0 * kRoofSize * kRoofSize * kRoofSize / times.median;
}

}  // namespace nibble::cuda
