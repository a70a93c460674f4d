// qwen3_5.h: the factory behind the registry's row, and what relatives are made by.
#pragma once

#include <memory>

#include "core/layers/decoder.h"
#include "models/qwen3_5_config.h"

namespace nibble {

std::unique_ptr<Decoder> make_qwen3_5(const JsonView& config, const Weights& weights);

std::unique_ptr<Decoder> make_hybrid(std::string architecture, Qwen3_5Config config, const Weights& weights);

}  // namespace nibble
