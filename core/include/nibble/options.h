// options.h: where a model runs, what is fixed at load, how text is generated.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/export.h"
#include "nibble/limits.h"

namespace nibble {

// Where a model runs. A load refuses what the backend has not, Error(invalid_argument), but for threads on
// CUDA, which has none to limit.
struct NIBBLE_API Device {
  std::string backend = "cpu";
  int threads = 0;      // CPU: 0 = all the machine's; limits.h says how many
  // CPU: "avx512", "avx2", "neon", "portable", in profile bf16 also "amx" and "avx512_bf16"; empty = the best available
  std::string kernels;
  std::string mirror;   // CPU: the profile of a card whose bits it reproduces: sm70, sm90, sm120; empty = none
  // CPU: its own arithmetic. "f32" (also where empty): float32 throughout. "bf16": linear layers multiply bf16, several
  // times faster in prefill where the processor has a unit for it; logits within 2e-2 of f32's (docs/numerics.md).
  std::string profile;
  int index = 0;        // CUDA: which card
  bool graphs = true;   // CUDA: run a step as one captured graph, not kernel by kernel
  std::string arch_path;  // CUDA: "sm70", "sm90", "sm120": whose profile and kernels; empty = the card's own
  // Norms and SwiGLU pack what they make themselves where activations are quantised: same bits, one pass.
  // Empty: yes, but not where rows are f16 (sm70).
  std::optional<bool> fused_pack;
  // CUDA: the linear layers of an MLP's gate and up and the SwiGLU behind them run as one kernel over one image: same
  // bits, two launches less and no tensor of gate and up. Empty: yes, but not where rows are f16 (sm70).
  // What stays apart is said in ModelInfo::notes.
  std::optional<bool> fused_swiglu;
  // CUDA: what a gated delta net has between its projections (gates, convolution, delta rule, norm) is one op: same
  // bits. Empty: yes, but not where rows are f16 (sm70). What stays apart is said in ModelInfo::notes.
  std::optional<bool> fused_delta;
  // CUDA: whether linear layers that are joined (projections of one input) are one launch, which gives the same bits; empty:
  // where its kernels can, that is on path sm90.
  std::optional<bool> fused_linears;
  // The residual sum and the norm that reads it are one op: same bits, one pass. Empty: yes. What stays apart is said in
  // ModelInfo::notes.
  std::optional<bool> fused_add_norm;
  // Attention and the gate behind it are one op: same bits. Empty: yes, but not on a card where rows are f16 (sm70). What
  // stays apart is said in ModelInfo::notes.
  std::optional<bool> fused_gate;
  // CPU: false reads weights where their file is mapped instead of copying each into an image made for the kernels:
  // the first token comes sooner and memory is shared with the system's file cache, later tokens take longer; same
  // bits. What cannot be read as it lies is still packed (mode a8, a mirror's 16-bit weights of another type); a model
  // of such weights alone (Model::synthetic) is refused.
  bool packing = true;

  static Device cpu(int threads = 0);
  static Device best();  // the first backend of the registry that finds a device
  // "cpu", "cpu:mirror=sm90", "cuda", "cuda:1": a backend, then a card's number or name=value pairs
  // (profile, mirror, arch-path, threads, kernels, graphs, fused-pack, fused-swiglu, fused-delta, fused-linears, fused-add-norm,
  // fused-gate or packing=on or off), parted by commas. Throws Error(invalid_argument).
  static Device parse(std::string_view text);
  std::string text() const;  // what parse() takes
};

// Operand of the linear layers' inputs.
enum class Activations {
  a16,       // not quantised: the profile's own operand type
  declared,  // as the checkpoint declares for each module (NVFP4, FP8 per token, ...)
  a8,        // lossy, for speed: NVFP4 weights re-encoded to FP8 at load; inputs of those and of FP8 ones FP8 per token
};
NIBBLE_API const char* activations_name(Activations a);  // "a16", "declared", "a8"
// Throws Error(invalid_argument) for another name.
NIBBLE_API Activations activations_from_name(std::string_view name);

// How keys and values are kept between steps.
enum class KvCacheDtype {
  automatic,  // in the profile's operand type
  fp8,        // lossy: e4m3, with a float32 scale for each position of a head: half of bf16's bytes, a quarter of float32's
};
NIBBLE_API const char* kv_cache_dtype_name(KvCacheDtype d);  // "auto", "fp8"
// Throws Error(invalid_argument) for another name.
NIBBLE_API KvCacheDtype kv_cache_dtype_from_name(std::string_view name);

struct LoadProgress {
  std::string_view stage;  // "reading", "packing"
  std::uint64_t done = 0, total = 0;  // bytes
};

// Sizes of every arena follow from these: nothing is allocated after load.
struct LoadOptions {
  Activations activations = Activations::a16;
  int max_sequences = 1;           // sessions that hold state at once
  std::int64_t kv_tokens = 8192;   // positions of KV cache, shared by all sessions, in pages of 64
  int step_tokens = 2048;          // rows of the largest step; a multiple of 64
  int max_drafts = 0;              // reserved rows that a step can take back, beyond the one always there
  // Start a step before the host has seen the tokens of the one before; what ran behind the end of an answer is taken
  // back, so answers and states are the same. Empty: where the device computes beside the host, which a card does.
  std::optional<bool> run_ahead;
  // fp8 needs heads of 64, 128 or 256 on a card, and is refused in profile sm70.
  KvCacheDtype kv_cache_dtype = KvCacheDtype::automatic;
  std::function<bool(const LoadProgress&)> on_progress;        // false cancels: Error(cancelled)
  std::function<void(std::string_view)> on_message;            // "skipped 333 vision tensors"
};

struct Sampling {
  float temperature = 0;         // 0: greedy
  int top_k = 0;                 // 0: all
  float top_p = 1, min_p = 0;    // 1 and 0: off
  float repetition_penalty = 1;  // 1: off
  std::uint64_t seed = 0;
  int max_new_tokens = 512;      // 0: the prompt is taken, nothing is generated
  std::vector<std::string> stop;               // texts that end the answer and are not part of it
  std::vector<std::int32_t> stop_tokens;       // beside the model's own
  bool ignore_model_stop_tokens = false;
};

}  // namespace nibble
