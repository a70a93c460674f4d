#include "backends/cpu/cpu_info.h"

#include <fstream>
#include <string>

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

bool has_isa(const std::string& isa) {
#if defined(__x86_64__)
  if (isa == "avx512") {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && has_isa("avx2");
  }
  if (isa == "avx2") return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#elif defined(__aarch64__)
  if (isa == "neon") return true;
#endif
  return isa == "portable";
}

}  // namespace nibble::cpu
