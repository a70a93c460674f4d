// linear.cpp: quantised activations back to operands, and the table of this instruction set.
#include "backends/cpu/kernels/linear.h"

#include "backends/cpu/kernels/linear_finish.h"
#include "backends/cpu/kernels/panel_decode.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

void decode_nvfp4(const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t cols,
                  float* x) {
  for (std::int64_t g = 0; g < cols / 16; ++g) {
    const float scale = num::e4m3_to_float(scales[g]);
    for (int i = 0; i < 8; ++i) {
      const std::uint8_t two = codes[g * 8 + i];
      x[g * 16 + 2 * i] = num::mul(num::e2m1_to_float(two & 15u), scale);
      x[g * 16 + 2 * i + 1] = num::mul(num::e2m1_to_float(two >> 4), scale);
    }
  }
}

void decode_fp8(const std::uint8_t* codes, std::int64_t cols, float* x) {
  std::int64_t k = 0;
  for (; k + kLanes <= cols; k += kLanes) store(x + k, load_e4m3(codes + k));
  for (; k < cols; ++k) x[k] = num::e4m3_to_float(codes[k]);
}

constexpr LinearKernels kKernels{few_rows, many_rows, decode_nvfp4, decode_fp8};

}  // namespace

const LinearKernels& linear_kernels() {
  return kKernels;
}

}  // namespace nibble::cpu::NIBBLE_ISA
