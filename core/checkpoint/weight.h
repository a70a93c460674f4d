// weight.h: a matrix of a checkpoint, still in the checkpoint's own format.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/bytes.h"

namespace nibble {

enum class WeightFormat : std::uint8_t { f32, f16, bf16, fp8_e4m3, nvfp4 };
const char* weight_format_name(WeightFormat f);

// Layout of Weight::scales. NVFP4 weights have block_scales besides their one tensor scale.
enum class ScaleLayout : std::uint8_t { none, tensor, row, block128 };

// What the checkpoint declares for the input of this module (activation mode `declared`).
struct ActivationFormat {
  enum class Kind : std::uint8_t { none, nvfp4_static, fp8_tensor_static, fp8_token, fp8_token_group128 };
  Kind kind = Kind::none;
  float scale = 0;  // static kinds: value = code [* block scale] * scale
  bool operator==(const ActivationFormat&) const = default;
};
const char* activation_format_name(ActivationFormat::Kind k);

// y[n] = sum_k x[k] * w[n, k].
struct Weight {
  std::string name;  // scope in the checkpoint, without ".weight"
  WeightFormat format = WeightFormat::f32;
  std::int64_t rows = 0, cols = 0;  // N, K
  Bytes codes;         // row-major [N, K] elements; nvfp4: [N, K / 2], low nibble = even k
  Bytes block_scales;  // nvfp4: e4m3 [N, K / 16]
  ScaleLayout scale_layout = ScaleLayout::none;
  std::vector<float> scales;  // multipliers: tensor 1, row N, block128 [ceil(N/128), ceil(K/128)]
  ActivationFormat activation;
  std::shared_ptr<const void> owner;  // keeps codes alive

  // Invented weights are made only when a backend asks: fills codes, block_scales and owner.
  std::function<void(Weight&)> materialize;

  std::uint64_t bytes() const;  // codes and scales, whether materialised or not
};

}  // namespace nibble
