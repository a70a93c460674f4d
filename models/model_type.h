// model_type.h: which family a config.json belongs to.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/base/json.h"

namespace nibble {

// `model_type` of a config.json. Throws Error(bad_file) when it is absent, empty or no string.
std::string model_type_of(const JsonView& config);
// The same, and throws Error(unsupported) with the list of those known when it is not among them.
std::string model_type_of(const JsonView& config, std::span<const std::string_view> known);

}  // namespace nibble
