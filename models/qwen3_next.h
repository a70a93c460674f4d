// qwen3_next.h: the factory behind the registry's row.
#pragma once

#include <memory>

#include "core/layers/decoder.h"

namespace nibble {

std::unique_ptr<Decoder> make_qwen3_next(const JsonView& config, const Weights& weights);

}  // namespace nibble
