#include "backends/cpu/kernels/quantize.h"

#include "backends/cpu/simd.h"
#include "core/numerics/codecs.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

// Integer order of magnitudes is their float order: a maximum that vectorises.
NIBBLE_INLINE float largest(const float* x, std::int64_t n) {
  std::uint32_t most = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t u = num::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFu;
    const std::uint32_t v = u > 0x7F800000u ? 0u : u;
    most = v > most ? v : most;
  }
  return num::bit_cast<float>(most);
}

void nvfp4(const float* x, std::int64_t cols, float scale, std::uint8_t* codes,
           std::uint8_t* scales) {
  for (std::int64_t g = 0; g < cols / 16; ++g, x += 16) {
    const std::uint8_t s = num::float_to_e4m3(num::div(num::div(largest(x, 16), 6.0f), scale));
    const float unit = num::mul(num::e4m3_to_float(s), scale);
    scales[g] = s;
    float value[16];
    std::uint32_t code[16];
    store(value, div(load(x), set1(unit)));
    for (int i = 0; i < 16; ++i) code[i] = num::float_to_e2m1(value[i]);
    for (int i = 0; i < 8; ++i) {
      codes[g * 8 + i] =
          static_cast<std::uint8_t>(s == 0 ? 0u : code[2 * i] | code[2 * i + 1] << 4);
    }
  }
}

void fp8_tensor(const float* x, std::int64_t cols, float scale, std::uint8_t* codes) {
  for (std::int64_t k = 0; k < cols; ++k) codes[k] = num::float_to_e4m3(num::div(x[k], scale));
}

void fp8_dynamic(const float* x, std::int64_t cols, std::uint8_t* codes, float* scale) {
  const float most = largest(x, cols);
  const float s = most == 0.0f ? 1.0f : num::div(most, 448.0f);
  *scale = s;
  fp8_tensor(x, cols, s, codes);
}

constexpr QuantizeKernels kKernels{nvfp4, fp8_tensor, fp8_dynamic};

}  // namespace

const QuantizeKernels& quantize_kernels() {
  return kKernels;
}

}  // namespace nibble::cpu::NIBBLE_ISA
