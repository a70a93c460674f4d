// converted.h: the shipped checkpoint as a GGUF file, by the rules of llama.cpp's converter.
#pragma once

#include "core/checkpoint/gguf_types.h"
#include "tests/gguf/writer.h"

namespace nibble::test {

// `matrices`: what NVFP4 matrices become (gguf::kNvfp4: they stay). Norms are f32 around 1, value
// heads tiled. `drafts`: with the draft head as block 8.
GgufWriter converted(std::uint32_t matrices = gguf::kNvfp4, bool drafts = false);

// What a value of a matrix is after it was stored so, with `largest` the largest of its block
// of 32.
float stored_value(float v, float largest, std::uint32_t type);

}  // namespace nibble::test
