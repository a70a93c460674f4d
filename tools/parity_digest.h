// parity_digest.h: digests of a device's outputs as a file: the run that it is of, and a hash for each kind
// of op. {"profile", "activations", "prompt": [ids], "decode", "chunk", "kinds": [{"kind", "ops", "elements",
// "digest"}]}
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "nibble/parity.h"

namespace nibble::tool {

Json digest_json(const ParityDigest& digest, const ParityOptions& how);

// A file that digest_json() made: sets prompt, decode, chunk and activations of `how` to what it is of. Throws
// Failure for a file that is not one.
Json read_digest(const std::filesystem::path& file, ParityOptions& how);

// What differs, one line each; empty: nothing.
std::vector<std::string> digest_differences(const Json& expected, const Json& found);

}  // namespace nibble::tool
