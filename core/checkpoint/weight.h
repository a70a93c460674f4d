// weight.h: one matrix of a checkpoint as its file holds it, with its scales decoded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/bytes.h"

namespace nibble {

enum class WeightFormat : std::uint8_t { f32, f16, bf16, fp8_e4m3, nvfp4 };
// Of Weight::scales; nvfp4 has block_scales besides its tensor scale.
enum class ScaleLayout : std::uint8_t { none, tensor, row, block128 };

const char* weight_format_name(WeightFormat f);  // "nvfp4", "fp8_e4m3", ...
const char* scale_layout_name(ScaleLayout s);    // "none", "tensor", "row", "block128"

// What the checkpoint declares for the input of a module.
struct ActivationFormat {
  enum class Kind : std::uint8_t {
    none,
    nvfp4_static,
    fp8_tensor_static,
    fp8_token,
    fp8_token_group128
  };
  Kind kind = Kind::none;
  float scale = 0;  // static kinds: value = code * [block scale *] scale

  bool operator==(const ActivationFormat&) const = default;
};

const char* activation_format_name(ActivationFormat::Kind k);

// y[n] = sum over k of x[k] * w[n, k]
struct Weight {
  std::string name;  // scope in the checkpoint, without ".weight"
  WeightFormat format = WeightFormat::f32;
  std::int64_t rows = 0, cols = 0;  // N, K
  // Rows of all layers that it is joined with, its own among them: matrices of one format that read one input, whose sums
  // are cut as those of one matrix would be (core/numerics/matrix_order.h). 0: none.
  std::int64_t joined_rows = 0;
  std::int64_t order_rows() const { return joined_rows > 0 ? joined_rows : rows; }
  Bytes codes;                      // row-major [N, K]; nvfp4: [N, K/2], low nibble = even k
  Bytes block_scales;               // nvfp4: e4m3 [N, K/16]
  ScaleLayout scale_layout = ScaleLayout::none;
  std::vector<float> scales;  // multipliers: 1, N, or ceil(N/128) * ceil(K/128)
  ActivationFormat activation;
  // For errors, `file: tensor "name"`; empty for a weight that lies in no file.
  std::string codes_origin, scales_origin;
  std::shared_ptr<const void> owner;  // keeps codes and block_scales alive; either may be unaligned

  // Invented or re-encoded weights are made only when a backend asks: fills codes, block_scales, owner and the
  // values of scales.
  std::function<void(Weight&)> materialize;
  std::uint64_t making_bytes = 0;  // that materialize needs beside the weight's own, until it returns

  std::uint64_t bytes() const;  // codes and scales, whether materialised or not
};

}  // namespace nibble
