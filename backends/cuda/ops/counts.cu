// counts.cu: how often each token stands in each slot's sequence. Sums of integers: atomics in any
// order give the same counts.
#include <algorithm>

#include "backends/cuda/ops/sample.h"
#include "core/ops/ops.h"
#include "core/schedule/batch.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;

// What Batch::from_output() made of o.
static_assert(Batch::from_output(0) == -1 && Batch::from_output(7) == -8);
__device__ std::int32_t output_of(std::int32_t reference) { return -1 - reference; }

// sampled: [outputs of the step before]
__global__ void __launch_bounds__(kThreads)
    step_counts(const StepView* step, TokenCountsView c, const std::int32_t* sampled) {
  const int first = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int stride = static_cast<int>(gridDim.x * kThreads);
  for (int i = first; i < step->taken_back; i += stride) {
    atomicSub(c.counts + step->taken_slot[i] * c.vocab + step->taken_token[i], 1);
  }
  for (int row = first; row < step->rows; row += stride) {
    const RangeView& range = step->range[step->range_of_row[row]];
    const std::int32_t at = row - range.first_row;
    std::int32_t token = step->tokens[row];
    if (token < 0) {
      token = sampled[output_of(token)];
      // The block is the step's own, written anew for every step; this thread alone has the row.
      const_cast<std::int32_t*>(step->tokens)[row] = token;
    }
    atomicAdd(c.counts + range.slot * c.vocab + token, 1);
    if (range.section != static_cast<std::int32_t>(Section::prefill) && at < c.records) {
      c.recent[static_cast<std::int64_t>(range.slot) * c.records + at] = token;
    }
  }
}

// recent: [pending - keep] tokens that do not count.
__global__ void __launch_bounds__(kThreads)
    counts_without(const std::int32_t* counts, const std::int32_t* recent, int dropped,
                   std::int64_t vocab, std::int32_t* to) {
  const std::int64_t token = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (token >= vocab) return;
  std::int32_t count = counts[token];
  for (int i = 0; i < dropped; ++i) count -= recent[i] == token ? 1 : 0;
  to[token] = count > 0 ? count : 0;
}

std::size_t row_bytes(const TokenCountsView& c) {
  return static_cast<std::size_t>(c.vocab) * sizeof(std::int32_t);
}

}  // namespace

void count_tokens(const Launch& to, const TokenCountsView& counts, const std::int32_t* sampled) {
  const std::int64_t blocks = std::max<std::int64_t>(1, (to.max_rows + kThreads - 1) / kThreads);
  step_counts<<<static_cast<unsigned>(blocks), kThreads, 0, to.stream>>>(to.step, counts, sampled);
}

void counts_save(cudaStream_t stream, const TokenCountsView& c, std::int32_t slot,
                 std::int32_t keep, std::int32_t pending, std::int32_t* to) {
  if (c.vocab <= 0) return;
  const std::int64_t blocks = (c.vocab + kThreads - 1) / kThreads;
  counts_without<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      c.counts + slot * c.vocab, c.recent + static_cast<std::int64_t>(slot) * c.records + keep,
      pending - keep, c.vocab, to);
}

void counts_load(cudaStream_t stream, const TokenCountsView& c, std::int32_t slot,
                 const std::int32_t* from) {
  cudaMemcpyAsync(c.counts + slot * c.vocab, from, row_bytes(c), cudaMemcpyDefault, stream);
}

void counts_reset(cudaStream_t stream, const TokenCountsView& c, std::int32_t slot) {
  cudaMemsetAsync(c.counts + slot * c.vocab, 0, row_bytes(c), stream);
}

}  // namespace nibble::cuda
