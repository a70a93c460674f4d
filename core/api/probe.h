// probe.h: a model on a device, stepped by hand with an observer: no engine, one sequence, and every row
// of a step is an output, so that all logits can be seen.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/api/loader.h"
#include "nibble/parity.h"

namespace nibble {

class Probe {
 public:
  // Programs decode(1) and mixed(chunk), room for prompt and decode. Throws as Model::load does.
  static Draft draft(const std::filesystem::path& model, const Device& on, const ParityOptions& how);

  // `keep_weights`: the checkpoint's own stay reachable through spec().
  Probe(Draft draft, const ParityOptions& how, bool keep_weights = false);

  const DeviceInfo& device() const { return backend_->device(); }
  const ModelSpec& spec() const { return spec_; }  // the programs; all of it with keep_weights
  const Program& program(Section section) const;
  std::int64_t position() const { return position_; }  // of the next row
  const Batch& batch() const { return batch_; }        // of the latest step

  // The next rows of the sequence: one for `decode`, up to `chunk` for `prefill`. `before` is told
  // the batch before anything runs.
  const StepOutput& run(Section section, std::span<const std::int32_t> tokens, const Observer& observer,
                        const std::function<void(const Program&, const Batch&)>& before = {});
  HostState state();

 private:
  std::unique_ptr<Backend> backend_;
  ModelSpec spec_;
  std::int64_t position_ = 0, capacity_ = 0;
  std::int32_t keep_ = 0;
  Batch batch_;
  StepOutput output_;
};

// One step of the walk that ParityOptions describe.
struct ProbeStep {
  std::int64_t number = 0;
  Section section = Section::prefill;
  std::span<const std::int32_t> tokens;
};
// Calls `step` for each; it returns the token that follows and false as `more` to end the walk. Counts
// rows, steps and tokens in `work`. True if the walk was not ended early.
bool walk(const ParityOptions& how, ParityWork& work,
          const std::function<std::int32_t(const ProbeStep&, bool& more)>& step);

// Finds which op of a program an observer is shown: ops come in order, those of empty sections and of these names are
// left out. Throws Error(internal) for one that does not belong there.
class OpCursor {
 public:
  explicit OpCursor(const Program& program, std::set<std::string> left_out = {})
      : program_(program), left_out_(std::move(left_out)) {}
  std::int64_t find(const Op& op);

 private:
  const Program& program_;
  std::set<std::string> left_out_;
  std::size_t next_ = 0;
};

// Throws Error(invalid_argument) with `why` where the device is asked for fused ops.
void expect_ops_one_by_one(const Device& on, const char* why);
// Of a program, ops that `other` shows nothing of: linear layers that it has inside a LinearSwiGlu, the parts of its
// DeltaNets and GatedAttentions, sums inside an AddRmsNorm. A DeltaNet without the norm shows all rows at once, its rules
// those of their section, so both are left out.
std::set<std::string> folded_into(const Program& other, const Program& program);

// By name, kind and section; a LinearSwiGlu shows what its SwiGlu does, a DeltaNet what the norm in it does, an AddRmsNorm
// its norm and a GatedAttention its gate.
bool same_op(const Op& a, const Op& b);
bool gives_logits(const Program& program, const Op& op);
std::string describe_op(const Op& op);    // "layers.3.self_attn.q_proj (linear)"
ParityDevice describe_device(const Device& on, const DeviceInfo& info);

}  // namespace nibble
