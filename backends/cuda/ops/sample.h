// sample.h: launches of what ends a step. Contracts: core/ops/ops.h (Sample, TokenLogprob).
#pragma once

#include <cstddef>

#include "backends/cuda/launch.h"

namespace nibble::cuda {

// How often each token stands in each slot's sequence, and the tokens of each slot's last decode or
// verify step (they may be taken back).
struct TokenCountsView {
  std::int32_t* counts = nullptr;  // [slots, vocab]
  std::int32_t* recent = nullptr;  // [slots, records]
  std::int32_t slots = 0, records = 0;
  std::int64_t vocab = 0;
};
// Tokens of StepView::taken_* leave, then the step's tokens count. Runs first in every step: a row's token that is
// Batch::from_output(o) becomes sampled[o], of the step before, for whatever reads it later.
void count_tokens(const Launch& to, const TokenCountsView& counts, const std::int32_t* sampled);
// counts of `slot` without the last `pending` - `keep` recent tokens, to `to` [vocab]; and back.
void counts_save(cudaStream_t stream, const TokenCountsView& counts, std::int32_t slot, std::int32_t keep,
                 std::int32_t pending, std::int32_t* to);
void counts_load(cudaStream_t stream, const TokenCountsView& counts, std::int32_t slot,
                 const std::int32_t* from);
void counts_reset(cudaStream_t stream, const TokenCountsView& counts, std::int32_t slot);

struct SampleArgs {
  View logits;  // [outputs, vocab] float32
  TokenCountsView counts;
  std::byte* workspace;
  std::int32_t* tokens;  // [outputs], device
};
// Of the workspace, for that many outputs at most.
std::size_t sample_workspace_bytes(std::int64_t max_outputs, std::int64_t vocab);
void sample(const Launch& to, const SampleArgs& args);

// The parts of the log-probability that the device computes in float32; the host takes differences and
// the logarithm in double: z_target - z_max - log(sum).
struct LogprobParts {
  float target, max, sum;
};
struct TokenLogprobArgs {
  View logits;
  LogprobParts* parts;  // [outputs], device
};
void token_logprob(const Launch& to, const TokenLogprobArgs& args);

}  // namespace nibble::cuda
