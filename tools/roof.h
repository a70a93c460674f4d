// roof.h: what this machine can do at most, measured in the same run as a bench.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nibble::tool {

struct Roof {
  int threads = 0;
  double read_bytes_per_second = 0;   // of memory, all threads reading their own part
  double buffer_bytes = 0;            // that were read: larger than the caches
  double float_flops_per_second = 0;  // float32 multiply-adds in registers, two operations each
  std::string instructions;           // "avx2 fma", "portable mul + add", ...
  double bf16_flops_per_second = 0;   // of the unit for bf16 that the kernels use; 0: they use none
  std::string bf16_instructions;      // "amx tiles"

  // Of linear layers: the unit's where one serves them.
  double linear_flops_per_second() const { return bf16_flops_per_second > 0 ? bf16_flops_per_second : float_flops_per_second; }
};

// About a second. Threads start together; the median of several passes counts. `kernels`: as ModelInfo names them.
Roof measure_roof(int threads, std::string_view kernels);

// Each rate's median over at least one sample: what a machine gives changes while rows are measured, most of all where
// others share its cores.
Roof median_roof(const std::vector<Roof>& samples);

}  // namespace nibble::tool
