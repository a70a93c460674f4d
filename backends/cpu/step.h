// step.h: what the ops of a running program see of their batch.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/schedule/batch.h"

namespace nibble::cpu {

struct Step {
  // `ids`: the batch's tokens, references resolved.
  Step(const Batch& of, std::span<const std::int32_t> ids, StepOutput& to, std::int32_t experts = 0)
      : batch(of), tokens(ids), out(to), experts_per_token(experts) {
    const std::span<const Range> all(of.ranges);
    std::size_t begin = 0;
    for (std::size_t s = 0; s < 3; ++s) {
      std::size_t end = begin;
      first_row[s] = s == 0 ? 0 : first_row[s - 1] + rows_of[s - 1];
      for (; end < all.size() && all[end].section == static_cast<Section>(s); ++end) {
        rows_of[s] += all[end].rows;
      }
      ranges_of[s] = all.subspan(begin, end - begin);
      begin = end;
    }
  }

  std::int64_t rows() const { return batch.rows(); }
  std::int64_t outputs() const { return static_cast<std::int64_t>(batch.output_rows.size()); }
  std::int64_t count(Rows r) const {
    switch (r) {
      case Rows::tokens:
        return rows();
      case Rows::outputs:
        return outputs();
      case Rows::routed:
        return rows() * experts_per_token;
      case Rows::one:
        return 1;
    }
    return 0;
  }
  std::span<const Range> ranges(Section s) const { return ranges_of[static_cast<std::size_t>(s)]; }

  const Batch& batch;
  std::span<const std::int32_t> tokens;
  StepOutput& out;
  std::int32_t experts_per_token;  // the program's
  std::array<std::span<const Range>, 3> ranges_of;
  std::array<std::int64_t, 3> first_row{}, rows_of{};
};

}  // namespace nibble::cpu
