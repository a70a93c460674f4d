// matrix_order.h: how the 16-bit profiles add up a linear layer on matrix units.
//
// A matrix instruction computes a fused dot product: the group's products and the accumulator are
// aligned to the largest exponent among those that are not zero, each term is truncated to F fraction
// bits, the terms are summed exactly, and the sum is truncated to float32 (Valpey et al., MMA-Sim,
// arXiv 2511.10909; measured equal on an H200). A profile fixes group and F; groups run along k,
// ascending, the result of one is the accumulator of the next. K is padded with zeros to whole groups.
//
// K is cut into segments that are independent of batch, kernel and card: a function of the weight's
// (unsharded) shape alone, so that a small batch may spread them over the chip. Layers that are joined (projections of one
// input, weights of one format: Weight::joined_rows) are cut as one weight of all their rows would be, so that they can be
// one product. Each segment starts its accumulator at +0; segments are added in ascending order in float32.
#pragma once

#include <cstdint>

#include "core/numerics/scalar.h"

namespace nibble::num {

struct MatrixOrder {
  int group;          // products in one fused sum
  int fraction_bits;  // F
};
constexpr MatrixOrder kSm90Order{16, 25};  // mma and wgmma, bf16 and f16 operands; sm120's mma too
constexpr MatrixOrder kSm70Order{4, 23};   // mma.m8n8k4, f16 operands; block-scaled FP4: fused_fp4.h

// sm90's FP8 unit (wgmma, e4m3 by e4m3; mode a8 only): one sum of 32 products, kept in kFp8ResultBits bits. So few
// bits are added up over kFp8Chain columns only, in four instructions; the chains of a sum are its segments
// (linear_segments with `blocks`), added to the total in float32.
constexpr MatrixOrder kSm90Fp8Order{32, 13};
constexpr int kFp8ResultBits = 14, kFp8Chain = 128;

// Profile sm90 takes an NVFP4 weight as code * block scale * 2^-7 and its tensor or row scale as float32(scale *
// 2^7): then a code and a scale become a bf16 operand by one multiplication (both factors are bf16 of values
// shifted by powers of two, whose product is code * scale * 2^-7 exactly). Away from the ends of float32's range
// the bits are those of the unshifted product.
constexpr float kSm90Nvfp4Unit = 0x1p-7f, kSm90Nvfp4Scale = 0x1p7f;

struct Segments {
  std::int32_t count;
  std::int32_t length;  // of all but the last; a multiple of 64
};

// `blocks`: scales change every 128 columns of K (128x128 weight blocks, or activations scaled in
// groups of 128), or sm90's FP8 unit adds up; a segment is one of those.
NIBBLE_HD constexpr Segments linear_segments(std::int64_t n, std::int64_t k, bool blocks) {
  if (k <= 0) return {1, 64};
  if (blocks) return {static_cast<std::int32_t>((k + 127) / 128), 128};
  // About 160 tiles of 128 outputs, each sum at least 1,024 long.
  const std::int64_t tiles = (n + 127) / 128;
  const std::int64_t by_shape = 160 / tiles, by_k = k / 1024;
  std::int64_t count = by_shape < by_k ? by_shape : by_k;
  if (count < 1) count = 1;
  const std::int64_t length = ((k + count - 1) / count + 63) / 64 * 64;
  return {static_cast<std::int32_t>((k + length - 1) / length), static_cast<std::int32_t>(length)};
}

}  // namespace nibble::num
