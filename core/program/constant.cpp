#include "backends/backend.h"
#include "nibble/error.h"

namespace nibble {

std::uint64_t elements(const Constant& c) {
  std::uint64_t n = 1;
  for (const std::int64_t d : c.shape) n *= static_cast<std::uint64_t>(d);
  if (n != c.data.size()) {
    throw Error(ErrorCode::internal, "[model] constant " + c.name + ": its shape has " + std::to_string(n) +
                                         " elements, its data " + std::to_string(c.data.size()));
  }
  return n;
}

}  // namespace nibble
