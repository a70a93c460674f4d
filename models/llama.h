// llama.h: the factory behind the registry's row, and the reader of its configuration.
#pragma once

#include <memory>

#include "core/layers/decoder.h"
#include "models/dense_config.h"

namespace nibble {

DenseConfig read_llama_config(const JsonView& config);
std::unique_ptr<Decoder> make_llama(const JsonView& config, const Weights& weights);

}  // namespace nibble
