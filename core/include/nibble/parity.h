// parity.h: do two devices compute the same bits, and does a device compute what the formulas say?
//
// Both walk one sequence: a prompt in steps of `chunk` rows, then single rows (greedy decoding), and look
// at the output of every op of every step. Every row of the prompt gives logits, so all are compared.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/error.h"
#include "nibble/export.h"
#include "nibble/options.h"

namespace nibble {

struct ParityOptions {
  std::vector<std::int32_t> prompt;  // at least one token
  int decode = 64;                   // steps of one row after the prompt
  int chunk = 128;                   // prompt rows of one step, a multiple of 64
  Activations activations = Activations::a16;
  KvCacheDtype kv_cache_dtype = KvCacheDtype::automatic;
  bool keep_going = false;  // past the step with the first difference, to count the others
  std::filesystem::path model_b;  // B's checkpoint; empty: the same as A's
  double bound = 0;  // compare_with_float64: largest error of an op; 0: float64_bound(profile)
  std::function<bool(const LoadProgress&)> on_load;                       // false cancels
  std::function<void(std::string_view)> on_message;                       // as LoadOptions::on_message
  std::function<bool(std::int64_t done, std::int64_t steps)> on_step;     // false cancels
};

struct ParityDevice {
  std::string text;  // as Device::parse takes it
  std::string backend, name, profile, kernels;
  int threads = 0;
};

// What was looked at.
struct ParityWork {
  std::int64_t prefill_rows = 0, prefill_steps = 0, decode_steps = 0;
  std::int64_t ops = 0, elements = 0;  // outputs of ops, logits included
  std::int64_t logits = 0;
  std::int64_t state_elements = 0;  // 0: the run ended before its last step
  std::vector<std::int32_t> tokens;  // chosen after the prompt; the last one is not fed
};

// One element. State after the last step has step -1 and index -1, and as op "state.delta.3.s" (rows
// value head and key, columns value), ".conv" (channel, oldest first), "state.attention.1.k" and ".v"
// (rows kv head and position). Codes of quantised activations are whole numbers.
struct ParityDifference {
  std::string program, op, kind;  // "mixed(128)", "layers.3.self_attn.q_proj", "linear"
  std::int64_t step = -1, index = -1;  // of the op in its program
  std::int64_t row = 0, column = 0;    // in the op's output
  std::int64_t position = -1;          // of the row in the sequence; -1 for state
  float a = 0, b = 0;
  std::uint32_t a_bits = 0, b_bits = 0;  // of the values as float32; bf16 and f16 are widened
};

struct ParityReport {
  struct Kind {
    std::string kind;
    std::int64_t ops = 0, elements = 0, ops_differing = 0, elements_differing = 0;
    double largest = 0;  // |a - b|, infinite where one is NaN or they are different infinities
  };
  ParityDevice a, b;
  ParityWork work;
  std::vector<Kind> kinds;                // in order of first appearance
  std::optional<ParityDifference> first;  // in the order of execution
  bool equal() const { return !first.has_value(); }
};

// Runs both devices in step, each fed with the tokens that A chooses, and compares bits: all NaN count
// as one value, zeros of different sign differ. Ends after the step with the first difference unless
// `keep_going`. Throws Error: what Model::load throws; `unsupported` where the devices run different
// programs (other ops, other widths); `context_full` where prompt and decode exceed the model.
NIBBLE_API ParityReport compare_devices(const std::filesystem::path& model, const Device& a, const Device& b,
                                        const ParityOptions& how);

// What one device computed, in a form that a file can keep: a run on a card leaves it, and the CPU's mirror
// of that profile reproduces it where there is no card.
struct ParityDigest {
  struct Kind {
    std::string kind;  // of op; "logits" once more by themselves; "state" after the last step
    std::int64_t ops = 0, elements = 0;
    std::string digest;  // FNV-1a (64 bits, hexadecimal) over the float32 patterns, all NaN as 0x7FFFFFFF
  };
  ParityDevice device;
  ParityWork work;
  std::vector<Kind> kinds;  // in order of first appearance
};
// Runs the walk on one device. Throws as compare_devices does.
NIBBLE_API ParityDigest digest_device(const std::filesystem::path& model, const Device& on,
                                      const ParityOptions& how);

struct Float64Report {
  struct Kind {
    std::string kind;
    std::int64_t ops = 0, elements = 0;
    double largest = 0;       // relative L2 error of one op's output; infinite where NaN meets a number
    std::string program, op;  // where
    std::int64_t step = -1;
    std::int64_t ops_above = 0;  // over the bound
  };
  ParityDevice device;
  ParityWork work;
  double bound = 0;
  std::vector<Kind> kinds;
  bool within() const {
    for (const Kind& k : kinds) {
      if (k.ops_above > 0) return false;
    }
    return true;
  }
};

// Evaluates each op's formula in float64 from the inputs that the device itself had (so errors do not add
// up), keys, values and recurrent state kept in float64, and reports how far the device's outputs are.
// What is exact by contract (codes of quantised activations, the sampled token) must be equal.
NIBBLE_API Float64Report compare_with_float64(const std::filesystem::path& model, const Device& on,
                                              const ParityOptions& how);

// What compare_with_float64 demands of each profile, and the largest error seen on the checkpoints of the tests:
// both activation modes, the text of `nibble parity` and random prompts of 1 to 300 tokens.
struct Float64Bound {
  std::string_view profile;
  double seen, bound;
};
NIBBLE_API std::span<const Float64Bound> float64_bounds();
// Throws Error(invalid_argument) for a profile that is not there.
NIBBLE_API double float64_bound(std::string_view profile);

}  // namespace nibble
