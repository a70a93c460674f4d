// registries.cpp: the one place that names models and backends together.
#include "backends/registry.h"
#include "core/api/registries.h"
#include "models/registry.h"

namespace nibble {

const Registries& registries() {
  static const Registries all{model_registry(), model_presets(), gguf_architectures(),
                              backend_registry()};
  return all;
}

}  // namespace nibble
