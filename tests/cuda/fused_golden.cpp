#include "tests/cuda/fused_golden.h"

#include <cstring>

#include "tests/support/golden.h"

namespace nibble::test {

FusedGolden::FusedGolden(const std::string& family) {
  const Golden file(data_folder() / "fused/fused.safetensors");
  a = file.u8(family + ".a");
  b = file.u8(family + ".b");
  const auto words = [&](const std::string& name) {
    const std::vector<std::uint8_t> bytes = file.u8(name);
    std::vector<std::uint32_t> v(bytes.size() / 4);
    std::memcpy(v.data(), bytes.data(), bytes.size());
    return v;
  };
  c = words(family + ".c");
  result = words(family + ".result");
  if (!file.has(family + ".a_scales")) return;
  a_scales = file.u8(family + ".a_scales");
  b_scales = file.u8(family + ".b_scales");
}

}  // namespace nibble::test
