// json_file.h: JSON files whose root has to be an object (config.json, an index, a header).
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/base/json.h"

namespace nibble {

// Throws Error(bad_file) unless the text is strict JSON with an object at its root.
Json parse_json_object(std::string_view text, const std::string& source);

// The same for a file of at most `most` bytes. Throws Error(not_found) when it is absent.
Json read_json_object(const std::filesystem::path& path, std::size_t most = 16u << 20);

}  // namespace nibble
