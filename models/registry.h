// registry.h: the architectures that nibble knows, one row each.
#pragma once

#include <span>

#include "core/checkpoint/gguf_source.h"
#include "core/layers/decoder.h"

namespace nibble {

std::span<const ModelEntry> model_registry();
std::span<const ModelPreset> model_presets();
std::span<const GgufArchitecture> gguf_architectures();

}  // namespace nibble
