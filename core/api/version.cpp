// version.cpp: the version that the build was made from.
#include "nibble/version.h"

namespace nibble {
const char* version() noexcept { return "0.1.0"; }
}  // namespace nibble
