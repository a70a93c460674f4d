// registries.h: the tables that the core receives; only the final library names what is in them.
#pragma once

#include <span>

#include "backends/backend.h"
#include "core/checkpoint/gguf_source.h"
#include "core/layers/decoder.h"

namespace nibble {

struct Registries {
  std::span<const ModelEntry> models;
  std::span<const ModelPreset> presets;
  std::span<const GgufArchitecture> gguf;
  std::span<const BackendEntry> backends;  // best first
};

const Registries& registries();  // defined by the final library

}  // namespace nibble
