// version.h: the version of the library.
#pragma once

#include "nibble/export.h"

namespace nibble {
NIBBLE_API const char* version() noexcept;  // "major.minor.patch"
}  // namespace nibble
