#include "backends/cpu/kernels/quantize.h"

#include "backends/cpu/kernels/codec_lanes.h"
#include "core/numerics/codecs.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

#if defined(NIBBLE_ISA_avx2) || defined(NIBBLE_ISA_avx512)

NIBBLE_INLINE F32x16 magnitude(F32x16 x) { return where_nan(x, zero(), abs(x)); }

NIBBLE_INLINE float largest(const float* x, std::int64_t n) {
  F32x16 most[2] = {zero(), zero()};
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    most[0] = max(most[0], magnitude(load(x + i)));
    most[1] = max(most[1], magnitude(load(x + i + kLanes)));
  }
  for (; i < n; i += kLanes) most[0] = max(most[0], magnitude(load_part(x + i, n - i)));
  return largest(max(most[0], most[1]));
}

// The scales of sixteen groups at once, then their codes.
void nvfp4(const float* x, std::int64_t cols, float scale, std::uint8_t* codes,
           std::uint8_t* scales) {
  const std::int64_t groups = cols / 16;
  for (std::int64_t g0 = 0; g0 < groups; g0 += kLanes) {
    const int count = groups - g0 < kLanes ? static_cast<int>(groups - g0) : kLanes;
    float most[kLanes] = {};
    for (int g = 0; g < count; ++g) most[g] = largest(magnitude(load(x + (g0 + g) * 16)));
    std::uint8_t s[kLanes];
    store_bytes(s, to_e4m3(div(div(load(most), set1(6.0f)), set1(scale))));
    for (int g = 0; g < count; ++g) {
      const F32x16 unit = set1(num::mul(num::e4m3_to_float(s[g]), scale));
      const I32x16 code = to_e2m1(div(load(x + (g0 + g) * 16), unit));
      scales[g0 + g] = s[g];
      store_nibbles(codes + (g0 + g) * 8, s[g] == 0 ? set32(0) : code);
    }
  }
}

void fp8_tensor(const float* x, std::int64_t cols, float scale, std::uint8_t* codes) {
  std::int64_t k = 0;
  for (; k + kLanes <= cols; k += kLanes) store_bytes(codes + k, to_e4m3(div(load(x + k), set1(scale))));
  if (k == cols) return;
  std::uint8_t last[kLanes];
  store_bytes(last, to_e4m3(div(load_part(x + k, cols - k), set1(scale))));
  for (int i = 0; k + i < cols; ++i) codes[k + i] = last[i];
}

#else

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

#endif

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
