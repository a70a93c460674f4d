// fixture.h: loading the shipped checkpoints and walking an answer beside an oracle's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/api/impl.h"
#include "core/base/json.h"
#include "nibble/nibble.hpp"
#include "tests/support/golden.h"

namespace nibble::test {

std::string data(const std::string& path);
Json read_json(const std::string& path);

// Every output that ops wrote, by op name, rows of all steps appended.
struct Trace {
  struct Rows {
    std::int64_t cols = 0;
    std::vector<float> values;
    std::int64_t rows() const { return cols == 0 ? 0 : static_cast<std::int64_t>(values.size()) / cols; }
    std::span<const float> row(std::int64_t r) const {
      return std::span(values).subspan(static_cast<std::size_t>(r * cols), static_cast<std::size_t>(cols));
    }
  };
  std::map<std::string, Rows> ops;

  // Records until it is destroyed. `wanted` empty: every op.
  Trace(Model& model, std::vector<std::string> wanted);
  ~Trace();
  Trace(const Trace&) = delete;

 private:
  Model& model_;
};

// Name of the op that gives the logits.
inline constexpr const char* kLogits = "lm_head";

// Greedy tokens after `prompt`, compared with the oracle's under the text rule: a different token is
// accepted (and printed) only where the oracle's own margin is below `least_margin`, and the walk goes
// on from the oracle's token. Reports a test failure otherwise.
void expect_greedy(Model& model, std::span<const std::int32_t> prompt,
                   std::span<const std::int32_t> oracle, std::span<const double> margins,
                   double least_margin, const std::string& what);

// Infinite for lists of different sizes, for empty ones and where a NaN is in them.
double relative_l2(std::span<const float> a, std::span<const float> b);
double largest_difference(std::span<const float> a, std::span<const float> b);

}  // namespace nibble::test
