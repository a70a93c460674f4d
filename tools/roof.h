// roof.h: what this machine can do at most, measured in the same run as a bench.
#pragma once

#include <string>

namespace nibble::tool {

struct Roof {
  int threads = 0;
  double read_bytes_per_second = 0;   // of memory, all threads reading their own part
  double buffer_bytes = 0;            // that were read: larger than the caches
  double float_flops_per_second = 0;  // float32 multiply-adds in registers, two operations each
  std::string instructions;           // "avx2 fma", "portable mul + add", ...
};

// About a second. Threads start together; the best of several passes counts.
Roof measure_roof(int threads);

}  // namespace nibble::tool
