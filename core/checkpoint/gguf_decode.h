// gguf_decode.h: a matrix of a GGUF file as a Weight holds it.
#pragma once

#include "core/checkpoint/gguf_source.h"
#include "core/checkpoint/weight.h"

namespace nibble {

// Fills codes, block_scales and owner of `w`, whose format, shape and names are set: f32 from F32
// and Q8_0, f16, bf16, nvfp4. The tensor has the shape of `w`. Throws Error(bad_file) for values
// that are not finite and NVFP4 scales with a sign.
void decode_gguf_matrix(const GgufTensor& t, const GgufHeads& heads, Weight& w);

// One block of 64: codes become 32 bytes (low nibble = even element), scales 4 bytes.
void unpack_nvfp4_block(const std::byte* block, std::byte* codes, std::byte* scales);

}  // namespace nibble
