// batch.h: one step's worth of rows, as the host describes it to a backend.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ops/ops.h"

namespace nibble {

// Consecutive rows of one sequence.
struct Range {
  Section section = Section::prefill;
  std::int32_t slot = 0;        // state slot
  std::int32_t first_row = 0;   // in the batch
  std::int32_t rows = 0;
  std::int64_t position = 0;    // of the first row in its sequence
  std::int32_t keep = 0;        // records of the last step that were accepted; the rest is taken back
  std::int32_t first_page = 0;  // into Batch::pages: this sequence's page table
};

struct SampleParams {
  float temperature = 0, top_p = 1, min_p = 0, repetition_penalty = 1;
  std::int32_t top_k = 0;
  std::uint64_t seed = 0;
  std::int32_t slot = 0;      // whose token counts the penalty reads
  std::int64_t position = 0;  // of the token that is drawn
};

// Ranges stand in section order; rows are numbered in range order.
struct Batch {
  // The token that output `o` of the step started just before sampled, or will have sampled when this step runs: the
  // host need not have seen it. In decode rows only.
  static constexpr std::int32_t from_output(std::int32_t o) { return -1 - o; }

  std::vector<std::int32_t> tokens;       // [rows]: ids, or from_output(o)
  std::vector<Range> ranges;
  std::vector<std::int32_t> pages;        // page tables, one after the other
  std::vector<std::int32_t> output_rows;  // rows whose logits are wanted, ascending
  std::vector<SampleParams> sampling;     // one for each output row (class score: empty)
  std::vector<std::int32_t> targets;      // class score: the token whose log-probability is wanted

  struct TakenBack {
    std::int32_t slot, token;
  };
  std::vector<TakenBack> taken_back;  // tokens of rows that `keep` drops, for the counts

  std::int64_t rows() const { return static_cast<std::int64_t>(tokens.size()); }
  void clear();
};

struct StepOutput {
  std::vector<std::int32_t> tokens;   // sampled, one for each output row
  std::vector<double> logprobs;       // class score
};

}  // namespace nibble
