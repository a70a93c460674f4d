// lanes_probe.h: the functions of kernels/lanes.h of each instruction set, over arrays.
#pragma once

#include <cstdint>

#include "backends/cpu/isa.h"

namespace nibble::cpu {

struct LaneFunctions {
  using Each = void (*)(const float* x, std::int64_t n, float* y);  // n a multiple of 16
  Each exp, silu, sigmoid, softplus;
  float (*sum)(const float* x, std::int64_t n);
  float (*squares)(const float* x, std::int64_t n);
};

NIBBLE_ON_EACH_ISA(const LaneFunctions& lane_functions();)

}  // namespace nibble::cpu
