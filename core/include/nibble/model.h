// model.h: a loaded model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/error.h"
#include "nibble/export.h"
#include "nibble/options.h"
#include "nibble/session.h"
#include "nibble/trace.h"
#include "nibble/tokenizer.h"

namespace nibble {

struct ChatMessage {
  std::string role, content;
};

struct ChatOptions {
  bool add_generation_prompt = true;
  // A JSON object: more keyword arguments of the template ({"enable_thinking": false}, tools, ...).
  std::string extra_json;
};

// What a load found and reserved. Bytes are those of the device's arenas.
struct ModelInfo {
  std::string architecture;
  std::int64_t layers = 0, hidden = 0, vocab = 0, max_positions = 0;
  struct Attention {  // layers 0: the model has none
    std::int64_t layers = 0, heads = 0, kv_heads = 0, head_dim = 0, rotary_dim = 0;
    double rope_theta = 0;
    std::string rope_scaling;  // "none", "linear, factor 2", ...
  } attention;
  struct DeltaNet {
    std::int64_t layers = 0, key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, conv_kernel = 0;
  } delta_net;
  struct Experts {  // of layers whose MLP is a mixture; the shared expert is not counted
    std::int64_t layers = 0, experts = 0, per_token = 0, intermediate = 0;
    std::int64_t parameters = 0, active_parameters = 0;  // of all layers' experts; of those that serve one token
    std::uint64_t active_bytes = 0;                      // of the latter, as packed; part of body.bytes
  } experts;
  double rms_eps = 0;
  bool tied_head = false;  // the head reads the embedding's table
  struct Quantisation {    // as the checkpoint declares it; what serves is in `formats`
    std::string method;                // "none", "compressed-tensors", "modelopt", "fp8"
    std::vector<std::string> groups;   // a line each
    std::vector<std::string> ignored;  // names and patterns of modules, as written
  } quantisation;
  struct FileRow {
    std::string name;
    std::int64_t tensors = 0;
    std::uint64_t bytes = 0;  // of its tensors
  };
  std::vector<FileRow> files;
  std::vector<std::int32_t> stop_tokens;
  std::string tokenizer;  // "byte-level BPE"; empty: none
  std::int64_t tokenizer_size = 0;
  bool chat_template = false;
  std::string backend, device, kernels, profile, activations, kv_cache_dtype;
  int threads = 0;
  bool packing = true;
  struct FormatRow {
    std::string format;  // "nvfp4", "fp8", "bf16", ...
    std::int64_t tensors = 0, parameters = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<FormatRow> formats;
  // Linear layers of one step: the body runs for every row, the head for rows that are sampled. An
  // embedding that is only looked up is in neither.
  struct LinearWork {
    std::int64_t parameters = 0;
    std::uint64_t bytes = 0;
  } body, head;
  std::uint64_t weight_bytes = 0, constant_bytes = 0, kv_bytes = 0, delta_bytes = 0, scratch_bytes = 0,
                count_bytes = 0;
  std::uint64_t mapped_bytes = 0;  // packing off: weights read where their files are mapped; in no arena
  std::uint64_t loading_bytes = 0;  // on the device beside the arenas while loading: what the peak exceeds them by
  std::uint64_t free_bytes = 0;     // of the device's memory, before any of these was taken
  struct ProgramRow {
    std::string name;
    std::int64_t ops = 0;
    std::uint64_t scratch_bytes = 0;
  };
  std::vector<ProgramRow> programs;
  // Activations a8, inspect() only: each NVFP4 matrix that is re-encoded to FP8, and what that loses.
  struct ReencodedRow {
    std::string name;
    std::int64_t rows = 0, cols = 0;
    int exponent = 0;              // the tensor scale is 6 * 2^exponent
    std::int64_t inexact = 0;      // elements that changed
    double error2 = 0, size2 = 0;  // sums of squares: of the differences, of the NVFP4 values
  };
  std::vector<ReencodedRow> reencoded;
  std::vector<std::string> notes;  // what was skipped or ignored, one line each

  NIBBLE_API std::uint64_t total_bytes() const;  // of all arenas
  // One JSON object; its keys are the names above.
  NIBBLE_API std::string json() const;
};

// One linear layer (or embedding), or one vector (a norm's weight, convolution taps, ...) of a checkpoint.
struct TensorRow {
  std::string name, format;
  std::string activations;          // "none" where they are not quantised; empty for a vector
  std::vector<std::int64_t> shape;  // a matrix: rows, columns
  std::uint64_t bytes = 0;          // in the file; a matrix: with its scales (Q8_0 of GGUF: as the f32 that it becomes)
  bool matrix = true;
};

struct SyntheticOptions {
  std::string shape = "qwen3_5-27b";
  int layers = 0;               // 0: the shape's own number
  std::string mix = "nvfp4";    // "nvfp4", "mlp-nvfp4-rest-fp8", "bf16", "f32"
  std::uint64_t seed = 1;
};

// Immutable weights and one engine; copies share both. Safe from any thread.
class NIBBLE_API Model {
 public:
  // `dir` holds config.json, safetensors, tokenizer.json, ..., or is a GGUF file. Nothing stays half loaded: it throws
  // Error(invalid_argument | not_found | bad_file | unsupported | out_of_memory | cancelled | no_device).
  static Model load(const std::filesystem::path& dir, const Device& on = Device::best(),
                    const LoadOptions& how = {});
  // Random weights in the shape of a real model, made in memory; no tokenizer.
  static Model synthetic(const SyntheticOptions& what, const Device& on = Device::best(),
                         const LoadOptions& how = {});
  // What load() would do, without moving weights: tensors by format, memory plan, refusals.
  // `tensors`: the matrices, then the vectors.
  static ModelInfo inspect(const std::filesystem::path& dir, std::vector<TensorRow>* tensors = nullptr,
                           const Device& on = Device::best(), const LoadOptions& how = {});
  // The same of synthetic().
  static ModelInfo inspect(const SyntheticOptions& what, const Device& on = Device::best(), const LoadOptions& how = {});
  static std::vector<std::string> architectures();
  static std::vector<std::string> synthetic_shapes();

  const ModelInfo& info() const;
  bool has_tokenizer() const;
  const Tokenizer& tokenizer() const;  // throws Error(not_found) for a model without one
  bool has_chat_template() const;
  std::string render_chat(std::span<const ChatMessage> messages, const ChatOptions& how = {}) const;
  std::string render_chat(std::string_view user) const;
  const std::vector<std::int32_t>& stop_tokens() const;

  // Throws Error(out_of_memory) when max_sequences sessions already hold state.
  Session new_session() const;
  StepStats stats() const;  // of all sessions so far
  // What the device does between the two, of all sessions. Throws Error(unsupported) where it cannot be
  // recorded (CUDA without CUPTI).
  void start_trace() const;
  Trace stop_trace() const;

  struct Impl;
  explicit Model(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  Impl& impl() const { return *impl_; }
  const std::shared_ptr<Impl>& shared() const { return impl_; }

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace nibble
