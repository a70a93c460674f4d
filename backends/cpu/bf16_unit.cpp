#include "backends/cpu/bf16_unit.h"

#if defined(NIBBLE_HAS_amx) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "backends/cpu/cpu_info.h"
#include "core/base/quote.h"
#include "nibble/error.h"

namespace nibble::cpu {
namespace {

#if defined(NIBBLE_HAS_amx)
// Linux hands the tiles' registers to a process that asks, once, for all its threads.
bool system_gives_tiles() {
#if defined(__linux__)
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool given = ::syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return given;
#else
  return false;
#endif
}
#endif

bool pairs_are_slow() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

}  // namespace

const char* bf16_unit_name(Bf16Unit unit) {
  constexpr const char* kNames[] = {"fma", "avx512_bf16", "amx"};
  return kNames[static_cast<int>(unit)];
}

std::string kernels_name(const Kernels& kernels) {
  return kernels.unit == Bf16Unit::fma ? isa_name(kernels.isa) : bf16_unit_name(kernels.unit);
}

std::vector<Kernels> available_kernels(bool bf16) {
  std::vector<Kernels> all;
  for (const Isa isa : available_isas()) {
    bool pairs = false;
    if (bf16 && isa == Isa::avx512) {
#if defined(NIBBLE_HAS_amx)
      if (has_isa("amx") && system_gives_tiles()) all.push_back({isa, Bf16Unit::amx});
#endif
#if defined(NIBBLE_HAS_avx512_bf16)
      if (has_isa("avx512_bf16")) pairs = true;
#endif
    }
    // Intel's cores run half as many of these as of fma (58 % of fma's speed was measured on one), AMD's as many.
    if (pairs && !pairs_are_slow()) all.push_back({isa, Bf16Unit::avx512_bf16});
    all.push_back({isa, Bf16Unit::fma});
    if (pairs && pairs_are_slow()) all.push_back({isa, Bf16Unit::avx512_bf16});
  }
  return all;
}

Kernels kernels_from_name(const std::string& name, bool bf16) {
  const std::vector<Kernels> all = available_kernels(bf16);
  if (name.empty()) return all.front();
  std::string known;
  for (const Kernels& k : all) {
    if (name == kernels_name(k)) return k;
    known += (known.empty() ? "" : ", ") + kernels_name(k);
  }
  const bool unit = name == bf16_unit_name(Bf16Unit::amx) || name == bf16_unit_name(Bf16Unit::avx512_bf16);
  throw Error(ErrorCode::no_device, "[cpu] kernels: expected one of " + known + " on this processor, found " +
                                        in_quotes(name) + (unit && !bf16 ? ", which only profile bf16 has" : ""));
}

}  // namespace nibble::cpu
