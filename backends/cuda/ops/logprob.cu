// logprob.cu: TokenLogprob of core/ops/ops.h: a block a row; the host takes differences and
// logarithm.
#include "backends/cuda/device/fold.cuh"
#include "backends/cuda/ops/sample.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr unsigned kAll = 0xFFFFFFFFu;
static_assert(kThreads == num::kTreeLong);

// Which of the zeros the CPU's maximum keeps: its 64 lanes each keep their first, and of two lanes
// that are folded the lower one stays.
__device__ __forceinline__ unsigned long long zero_rank(std::int64_t i) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned>(i % 64))) << 32 |
         static_cast<unsigned long long>(i);
}

__global__ void __launch_bounds__(kThreads)
    logprob_parts(const StepView* step, TypedRows<const float> logits, std::int64_t vocab,
                  LogprobParts* parts) {
  __shared__ float lanes[kThreads];
  __shared__ float maxima[kWarps];
  __shared__ unsigned long long zeros[kWarps];
  const std::int64_t o = blockIdx.x;
  if (o >= step->outputs) return;
  const float* const z = logits.row(o);
  const int t = static_cast<int>(threadIdx.x);

  float largest = num::bit_cast<float>(0xFF800000u);
  for (std::int64_t i = t; i < vocab; i += kThreads) largest = num::max(z[i], largest);
  for (int s = kWarp / 2; s > 0; s /= 2) {
    largest = num::max(__shfl_xor_sync(kAll, largest, s), largest);
  }
  if (t % kWarp == 0) maxima[t / kWarp] = largest;
  __syncthreads();
  largest = maxima[0];
  for (int w = 1; w < kWarps; ++w) largest = num::max(maxima[w], largest);

  const int count = num::tree_lanes(vocab);
  float sum = 0.0f;
  for (std::int64_t i = t; t < count && i < vocab; i += count) {
    sum = num::add(sum, num::exp(num::sub(z[i], largest)));
  }
  sum = count == kWarp ? warp_fold(sum) : block_fold(sum, lanes);

  if (largest == 0.0f) {
    unsigned long long first = ~0ull;
    for (std::int64_t i = t; i < vocab; i += kThreads) {
      if (z[i] == 0.0f) first = min(first, zero_rank(i));
    }
    for (int s = kWarp / 2; s > 0; s /= 2) first = min(first, __shfl_xor_sync(kAll, first, s));
    if (t % kWarp == 0) zeros[t / kWarp] = first;
    __syncthreads();
    first = zeros[0];
    for (int w = 1; w < kWarps; ++w) first = min(first, zeros[w]);
    largest = z[first & 0xFFFFFFFFu];
  }
  if (t == 0) parts[o] = {z[step->targets[o]], largest, sum};
}

}  // namespace

void token_logprob(const Launch& to, const TokenLogprobArgs& args) {
  if (to.max_outputs <= 0) return;
  logprob_parts<<<static_cast<unsigned>(to.max_outputs), kThreads, 0, to.stream>>>(
      to.step, typed<const float>(args.logits), args.logits.cols, args.parts);
}

}  // namespace nibble::cuda
