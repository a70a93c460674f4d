// expert_limits.h: free of everything else, for inner loops and device code.
#pragma once

#include <cstdint>

namespace nibble {

constexpr std::int32_t kMostExperts = 1024;  // of one ExpertRoute

}  // namespace nibble
