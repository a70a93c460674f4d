// version.cpp: the version that the build was made from.
#include "nibble/version.h"

namespace nibble {
const char* version() noexcept { return NIBBLE_VERSION; }
}  // namespace nibble
