#include "backends/cpu/isa.h"

#include "backends/cpu/cpu_info.h"

namespace nibble::cpu {

const char* isa_name(Isa isa) {
  constexpr const char* kNames[] = {"portable", "avx2", "avx512", "neon"};
  return kNames[static_cast<int>(isa)];
}

std::vector<Isa> available_isas() {
  std::vector<Isa> all;
#if defined(NIBBLE_HAS_avx512)
  if (has_isa("avx512")) all.push_back(Isa::avx512);
#endif
#if defined(NIBBLE_HAS_avx2)
  if (has_isa("avx2")) all.push_back(Isa::avx2);
#endif
#if defined(NIBBLE_HAS_neon)
  all.push_back(Isa::neon);
#endif
  all.push_back(Isa::portable);
  return all;
}

}  // namespace nibble::cpu
