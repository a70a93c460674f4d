// linear_a8_plain.cu: what linear_a8.cuh computes, without the FP8 unit: for rows that its copies cannot read, and for
// other cards. A thread makes an output by the exact model of the unit (core/numerics/fused_dot.h).
#include <algorithm>

#include "backends/cuda/check.h"
#include "backends/cuda/ops/linear_parts.cuh"
#include "core/numerics/fused_dot.h"

namespace nibble::cuda {
namespace {

constexpr int kPlainThreads = 128;

__global__ void __launch_bounds__(kPlainThreads) a8_plain(LinearParams p) {
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * kPlainThreads + threadIdx.x, cols = p.weight.cols;
  if (n >= p.weight.rows) return;
  const std::int64_t rows = row_count(*p.step, p.rows);
  for (std::int64_t token = blockIdx.y; token < rows; token += gridDim.y) {
    const auto* const x = reinterpret_cast<const std::uint8_t*>(p.x) + token * p.x_stride;
    float total = 0.0f;
    for (std::int64_t chain = 0; chain < cols; chain += num::kFp8Chain) {
      float sum = 0.0f;
      for (std::int64_t k = chain; k < min(cols, chain + num::kFp8Chain); k += num::kSm90Fp8Order.group) {
        float a[num::kSm90Fp8Order.group], b[num::kSm90Fp8Order.group];
        for (int i = 0; i < num::kSm90Fp8Order.group; ++i) {
          a[i] = k + i < cols ? weight_value(p.weight, n, k + i) : 0.0f;
          b[i] = k + i < cols ? num::e4m3_to_float(x[k + i]) : 0.0f;
        }
        sum = num::fused_dot<num::kSm90Fp8Order.group, num::kSm90Fp8Order.fraction_bits, num::kFp8ResultBits,
                             num::kE4m3MinExponent>(a, b, sum);
      }
      total = add_segment(p, token, true, n, static_cast<int>(chain / num::kFp8Chain), sum, total);
    }
    finish(p, token, n, total);
  }
}

}  // namespace

void launch_a8_plain(const Launch& to, const LinearParams& l) {
  const dim3 grid(static_cast<unsigned>((l.weight.rows + kPlainThreads - 1) / kPlainThreads),
                  static_cast<unsigned>(std::min<std::int64_t>(to.max_of(l.rows), 65535)));
  a8_plain<<<grid, kPlainThreads, 0, to.stream>>>(l);
  check(cudaGetLastError(), "linear");
}

}  // namespace nibble::cuda
