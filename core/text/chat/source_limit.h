// source_limit.h: how long the source of a chat template may be; whoever reads it from a file looks at
// the file's size first.
#pragma once

#include <cstddef>

namespace nibble {

inline constexpr std::size_t kLargestTemplate = 1u << 20;  // bytes

}  // namespace nibble
