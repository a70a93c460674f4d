// dense.h: the decoder that dense families share.
#pragma once

#include <memory>

#include "core/layers/decoder.h"
#include "models/dense_config.h"

namespace nibble {

// `architecture`: as ModelInfo names it, a literal. `qk_norm`: each head's query and key have a norm.
std::unique_ptr<Decoder> make_dense(const char* architecture, const DenseConfig& c, bool qk_norm, const Weights& weights);

}  // namespace nibble
