// bench_weights.h: random weights for measurements, and copies of their images.
#pragma once

#include <algorithm>
#include <string>

#include "backends/cuda/check.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/weight_image.h"
#include "core/checkpoint/synthetic.h"
#include "nibble/op_bench.h"

namespace nibble::cuda {

constexpr std::int64_t kColdRows = 16;  // up to here a step reads weights and does little else
constexpr std::uint64_t kMostCopies = 1024;

inline Weight random_weight(const std::string& format, const LinearShape& s, const char* name = "bench") {
  const char* mix = format == "fp8" ? "mlp-nvfp4-rest-fp8" : format.c_str();
  return *SyntheticSource(1, synthetic_policy(mix)).make_matrix(name, s.n, s.k);
}

// Copies of `bytes` between whose uses lies more than four times the L2.
inline std::uint64_t copies_of(std::uint64_t bytes, std::uint64_t l2_bytes) {
  return std::min(4 * l2_bytes / bytes + 2, kMostCopies);
}

// Where the same image lies `bytes` (a multiple of 256) further on.
inline WeightImage moved(WeightImage image, std::uint64_t bytes) {
  image.codes += bytes;
  if (image.scales != nullptr) image.scales += bytes;
  if (image.block != nullptr) image.block += bytes / sizeof(float);
  if (image.alpha != nullptr) image.alpha += bytes / sizeof(float);
  return image;
}

// Memory of a packing for rows of so many columns: at least two groups of 64 rows of bf16.
struct BenchStaging {
  BenchStaging(std::int64_t cols, cudaStream_t on)
      : bytes(std::max<std::uint64_t>(64u << 20, 256 * static_cast<std::uint64_t>(cols))),
        host(Place::pinned, bytes, "packing a weight", made),
        device(Place::device, bytes, "packing a weight", made),
        stream(on) {}
  Staging view() const { return {host.data(), device.data(), bytes, stream}; }

  std::uint64_t made = 0, bytes;
  Block host, device;
  cudaStream_t stream;
};

}  // namespace nibble::cuda
