// decoder.h: a model family as the core sees it, and the table row that makes it known.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/checkpoint/weights.h"
#include "core/program/step.h"

namespace nibble {

struct DecoderInfo {
  std::string architecture;  // model_type of the configuration
  std::int64_t layers = 0, hidden = 0, vocab = 0;
  std::int64_t max_positions = 0;
  std::vector<std::int32_t> end_tokens;  // the configuration's; generation_config.json may add
  // For people who ask what a checkpoint is; shapes of layers are known from the program's state.
  double rope_theta = 0, rms_eps = 0;
  std::int64_t rotary_dim = 0;
  bool tied_head = false;
  RopeScaling rope_scaling = {};
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual DecoderInfo info() const = 0;
  // Logits of the wanted rows, [outputs, vocab]. Prefill and decode alike.
  virtual Tensor forward(Step& s) const = 0;
};

struct ModelEntry {
  const char* model_type;
  std::unique_ptr<Decoder> (*make)(const JsonView& config, const Weights& weights);
};

// A named shape without a checkpoint, for `--synthetic`.
struct ModelPreset {
  const char* name;
  const char* config;  // config.json
};

}  // namespace nibble
