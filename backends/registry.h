// registry.h: the backends of this build, in order of preference.
#pragma once

#include <span>

#include "backends/backend.h"

namespace nibble {

std::span<const BackendEntry> backend_registry();

}  // namespace nibble
