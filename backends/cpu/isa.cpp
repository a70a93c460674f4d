#include "backends/cpu/isa.h"

#include "backends/cpu/cpu_info.h"
#include "core/base/quote.h"
#include "nibble/error.h"

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

Isa isa_from_name(const std::string& name) {
  const std::vector<Isa> all = available_isas();
  if (name.empty()) return all.front();
  std::string known;
  for (const Isa isa : all) {
    if (name == isa_name(isa)) return isa;
    known += (known.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  throw Error(ErrorCode::no_device, "[cpu] kernels: expected one of " + known +
                                          " on this processor, found " + in_quotes(name));
}

}  // namespace nibble::cpu
