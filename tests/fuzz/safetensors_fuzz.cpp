// A safetensors file: either refused with an Error, or every tensor lies inside the file.
#include <cstdlib>

#include "core/checkpoint/safetensors.h"
#include "nibble/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const nibble::Bytes file(reinterpret_cast<const std::byte*>(data), size);
  try {
    const nibble::SafetensorsFile read(file, "fuzz", nullptr);
    std::size_t total = 0;
    for (const nibble::TensorInfo& t : read.tensors()) {
      total += t.bytes.size();
      if (nibble::tensor_bytes(t.dtype, t.shape) != t.bytes.size()) std::abort();
      if (!t.bytes.empty() &&
          (t.bytes.data() < file.data() || t.bytes.data() + t.bytes.size() > file.data() + size)) {
        std::abort();
      }
      if (read.find(t.name) != &t) std::abort();
    }
    if (total > size) std::abort();
  } catch (const nibble::Error& e) {
    if (e.code() != nibble::ErrorCode::bad_file) std::abort();
  }
  return 0;
}
