// bf16_unit.h: what multiplies bf16 in profile bf16, beside the instruction set that serves everything else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/cpu/isa.h"

namespace nibble::cpu {

enum class Bf16Unit : std::uint8_t {
  fma,          // none: float32 multiply-adds of the instruction set
  avx512_bf16,  // pairs in vectors (VDPBF16PS), on Isa::avx512
  amx,          // tiles (TDPBF16PS), on Isa::avx512
};

const char* bf16_unit_name(Bf16Unit unit);  // "amx"

// What computes: Device::kernels names it by the unit where there is one, else by the instruction set.
struct Kernels {
  Isa isa;
  Bf16Unit unit;
  Kernels(Isa set, Bf16Unit with = Bf16Unit::fma) : isa(set), unit(with) {}  // NOLINT: an instruction set alone is one
};
std::string kernels_name(const Kernels& kernels);
// Best first: compiled in, and this processor (and, for tiles, the system) has it. `bf16`: those of profile bf16, else
// instruction sets alone.
std::vector<Kernels> available_kernels(bool bf16);
// Empty: the best. Throws Error(no_device) for a name that is unknown, not available here or of another profile.
Kernels kernels_from_name(const std::string& name, bool bf16);

}  // namespace nibble::cpu
