// cpu_info.h: what this processor is and which instruction sets it has.
#pragma once

#include <string>

namespace nibble::cpu {

std::string processor_name();
bool has_isa(const std::string& isa);  // "avx512", "avx2", "neon", "portable"

}  // namespace nibble::cpu
