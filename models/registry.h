// registry.h: the architectures that nibble knows, one row each.
#pragma once

#include <span>

#include "core/layers/decoder.h"

namespace nibble {

std::span<const ModelEntry> model_registry();
std::span<const ModelPreset> model_presets();

}  // namespace nibble
