#include "core/checkpoint/weight.h"



namespace nibble {

const char* weight_format_name(WeightFormat f) {
  constexpr const char* kNames[] = {"f32", "f16", "bf16", "fp8", "nvfp4"};
  return kNames[static_cast<int>(f)];
}

const char* activation_format_name(ActivationFormat::Kind k) {
  constexpr const char* kNames[] = {"a16", "nvfp4", "fp8 per tensor", "fp8 per token",
                                    "fp8 per token and 128"};
  return kNames[static_cast<int>(k)];
}

std::uint64_t Weight::bytes() const {
  const auto elements = static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(cols);
  std::uint64_t codes_bytes = 0;
  switch (format) {
    case WeightFormat::f32: codes_bytes = elements * 4; break;
    case WeightFormat::f16:
    case WeightFormat::bf16: codes_bytes = elements * 2; break;
    case WeightFormat::fp8_e4m3: codes_bytes = elements; break;
    case WeightFormat::nvfp4: codes_bytes = elements / 2 + elements / 16; break;
  }
  return codes_bytes + scales.size() * sizeof(float);
}

}  // namespace nibble
