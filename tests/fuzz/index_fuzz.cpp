// model.safetensors.index.json: either refused, or every shard is a plain file name.
#include <cstdlib>
#include <string_view>

#include "core/checkpoint/checkpoint.h"
#include "nibble/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    for (const auto& shard : nibble::read_shard_index(text, "index")) {
      if (shard.tensors.empty() || !shard.shard.ends_with(".safetensors")) std::abort();
      if (shard.shard.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos)
        std::abort();
    }
  } catch (const nibble::Error& e) {
    if (e.code() != nibble::ErrorCode::bad_file) std::abort();
  }
  return 0;
}
