// toy.h: a two-layer hybrid model put together by hand, and the bookkeeping to run sequences on it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "backends/backend.h"

namespace nibble::test {

// Appends ops and gives each output a buffer of its own: nothing is reused, so nothing is planned.
class ProgramBuilder {
 public:
  explicit ProgramBuilder(ProgramClass cls) { program_.cls = cls; }

  Tensor buffer(Rows rows, std::int64_t cols, DType dtype = DType::f32);
  void op(std::string name, OpArgs args) {
    program_.ops.push_back({std::move(name), std::move(args), {}, {}});
  }
  Tensor linear(const std::string& name, Tensor x, WeightId weight, std::int64_t n);
  Tensor norm(const std::string& name, Tensor x, ConstantId weight);
  Tensor add(const std::string& name, Tensor a, Tensor b);
  Program take() { return std::move(program_); }
  const ProgramClass& cls() const { return program_.cls; }

 private:
  Program program_;
};

struct ToySizes {
  std::int64_t vocab = 300, hidden = 64, inner = 96;
  DeltaShape delta{2, 4, 32, 32, 4};
  AttentionShape attention{4, 2, 64};
  std::int64_t positions = 1024;
  bool has_attention = true, has_delta = true;
  std::int32_t slots = 8, records = 4;
  std::int64_t pages = 64, step_rows = 256;
};

// Programs: decode(8), verify(32), mixed(step_rows), score(step_rows).
enum ToyProgram : std::size_t { kDecode, kVerify, kMixed, kScore };
ModelSpec toy_model(const ToySizes& sizes, std::uint32_t seed = 1);
StateSizes toy_state(const ToySizes& sizes);

// A dense f32 weight with invented values.
Weight random_weight(const std::string& name, std::int64_t rows, std::int64_t cols,
                     std::uint32_t seed);

// What a schedule keeps of one sequence.
struct Sequence {
  std::int32_t slot = 0;
  std::vector<std::int32_t> pages;
  std::vector<std::int32_t> tokens;  // fed and accepted, or taken back later
  std::int64_t length = 0;           // positions in the state, pending rows included
  std::int32_t pending = 0;
  SampleParams sampling;
};

// Builds batches; one call of each adds one range.
class BatchBuilder {
 public:
  // keep < 0: all pending rows. Rows from `outputs_from` on are outputs.
  void add(Section section, Sequence& s, const std::vector<std::int32_t>& tokens,
           std::size_t outputs_from, std::int32_t keep = -1);
  Batch batch;
};

// Runs and returns the logits, one row for each output.
std::vector<std::vector<float>> run_for_logits(Backend& backend, std::size_t program,
                                               const Batch& batch, StepOutput& out);

}  // namespace nibble::test
