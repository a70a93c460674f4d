// sample.h: the next token of each output row, and log-probabilities of given tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backends/cpu/isa.h"
#include "backends/cpu/parallel.h"
#include "core/schedule/batch.h"

namespace nibble::cpu {

struct SampleRow {
  const float* logits;         // [vocab]
  const std::int32_t* counts;  // [vocab], tokens of the whole sequence; null: none
  // Tokens that `counts` holds but that come after this row (drafts behind it): they do not count.
  std::span<const std::int32_t> later;
  const SampleParams* params;
};

// Scratch for `lanes` rows at a time.
std::uint64_t sample_workspace_bytes(std::int64_t vocab, std::int64_t lanes);

// `lanes` as many as the workspace was made for. tokens[i] belongs to rows[i].
void sample(Isa isa, Parallel& parallel, std::span<const SampleRow> rows, std::int64_t vocab,
            std::byte* workspace, std::int64_t lanes, std::int32_t* tokens);

// logprobs[i] of targets[i] under row i of logits [rows, stride]. No scratch.
void token_logprob(Isa isa, Parallel& parallel, const float* logits, std::int64_t stride,
                   std::int64_t vocab, std::span<const std::int32_t> targets, double* logprobs);

}  // namespace nibble::cpu
