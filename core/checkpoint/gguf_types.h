// gguf_types.h: element types of GGUF tensors: values lie in blocks of fixed size.
#pragma once

#include <cstdint>

namespace nibble {

struct GgufType {
  std::uint32_t id;
  const char* name;    // as ggml spells it: "F32", "Q8_0", "NVFP4", ...
  std::int64_t block;  // values
  std::int64_t block_bytes;
};

namespace gguf {
inline constexpr std::uint32_t kF32 = 0, kF16 = 1, kQ8_0 = 8, kBF16 = 30, kNvfp4 = 40;
}  // namespace gguf

// nullptr for an id that names no type (or one that the format has given up).
const GgufType* gguf_type(std::uint32_t id);

}  // namespace nibble
