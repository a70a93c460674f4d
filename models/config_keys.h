// config_keys.h: keys of config.json that families share, read and checked in one way.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/program/rope.h"

namespace nibble {

// Upper ends are far above any model and keep every product of two sizes inside 64 bits.
constexpr std::int64_t kMostHeads = 4096, kMostDim = 65536;

// A value that a file may hold and nothing here runs; `what` says expected and found.
[[noreturn]] void unsupported(const JsonView& at, const char* key, const std::string& what);

// A value of a hostile file: short enough for an error.
std::string found_text(const Json& v);

// One id or a list of them, inside the vocabulary; nothing where the key is absent.
std::vector<std::int32_t> token_ids(const JsonView& at, const char* key, std::int64_t vocab);

// Rotary embedding of all of head_dim: theta, and scaling of type default, linear or llama3. Newer
// files keep it in rope_parameters, older ones in rope_theta and rope_scaling. The longest context
// is that of the file.
RopeConfig read_rope_config(const JsonView& t, std::int64_t head_dim);

}  // namespace nibble
