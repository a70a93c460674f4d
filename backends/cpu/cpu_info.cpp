#include "backends/cpu/cpu_info.h"

#include <fstream>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace nibble::cpu {

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("model name", 0) == 0) {
      const auto colon = line.find(':');
      if (colon != std::string::npos && colon + 2 < line.size()) return line.substr(colon + 2);
    }
  }
  return "unknown processor";
}

#if defined(__x86_64__)
// Bits of leaf 7 that not every compiler's __builtin_cpu_supports knows.
struct Leaf7 {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  explicit Leaf7(unsigned sub) { __get_cpuid_count(7, sub, &eax, &ebx, &ecx, &edx); }
};
#endif

bool has_isa(const std::string& isa) {
#if defined(__x86_64__)
  if (isa == "avx512") {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && has_isa("avx2");
  }
  if (isa == "avx512_bf16") return has_isa("avx512") && (Leaf7(1).eax >> 5 & 1u) != 0;
  if (isa == "amx") {  // AMX-BF16, AMX-TILE
    const Leaf7 leaf(0);
    return has_isa("avx512_bf16") && (leaf.edx >> 22 & 1u) != 0 && (leaf.edx >> 24 & 1u) != 0;
  }
  if (isa == "avx2") return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#elif defined(__aarch64__)
  if (isa == "neon") return true;
#endif
  return isa == "portable";
}

}  // namespace nibble::cpu
