// linear_fused.h: the inner loops of Linear in a mirrored profile: fused sums of matrix units instead
// of chains; order: core/numerics/matrix_order.h. Segments enter the total and leave it as in linear.h.
#pragma once

#include <cstdint>

#include "backends/cpu/kernels/linear.h"

namespace nibble::cpu {

constexpr int kFusedRows = 16;  // at most this many in one call: they share the first-level cache

// K is padded with zeros to whole groups of this many; a multiple of every profile's group.
constexpr int kFusedGroup = 32;

struct FusedBlock {
  LinearBlock linear;             // x as operand_...() leaves it
  const std::int32_t* exponents;  // [rows, x_stride], operand_...()'s
  const std::int32_t* ordinary;   // [rows], what operand_...() returned
  std::int64_t segment;           // k of one segment, a multiple of 64
};

// NVFP4 x NVFP4 on the block-scaled unit (core/numerics/fused_fp4.h); K padded to groups of 64.
struct Fp4Block {
  LinearBlock linear;             // its x is not used
  const std::int16_t* codes;      // [rows, stride] twice the codes' values
  const double* scales;           // [rows, stride / 16], of each block
  const std::int32_t* exponents;  // [rows, stride / 16], theirs
  std::int64_t stride;            // a multiple of 64
  std::int64_t segment;
};

struct FusedKernels {
  // One row of bf16-, e4m3- or f16-representable values to what the loops read; both rows padded with zeros to a
  // multiple of kFusedGroup. x and to may be the same. False for a row with an infinity or a NaN.
  bool (*operand_bf16)(const float* x, std::int64_t count, float* to, std::int32_t* exponents);
  bool (*operand_e4m3)(const float* x, std::int64_t count, float* to, std::int32_t* exponents);
  // x * scale, a power of two that makes them so.
  bool (*operand_f16)(const float* x, float scale, std::int64_t count, float* to,
                      std::int32_t* exponents);
  // One row of NVFP4 codes and scales, count a multiple of 16; padded to groups of 64.
  void (*operand_fp4)(const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t count,
                      std::int16_t* to, double* to_scales, std::int32_t* exponents);
  void (*sm90)(const FusedBlock& block, std::int64_t panel_begin, std::int64_t panel_end);
  void (*sm90_fp8)(const FusedBlock& block, std::int64_t panel_begin, std::int64_t panel_end);
  void (*sm70)(const FusedBlock& block, std::int64_t panel_begin, std::int64_t panel_end);
  void (*fp4)(const Fp4Block& block, std::int64_t panel_begin, std::int64_t panel_end);
  // For tests: one row over a bare panel, k <= 128 and a multiple of the group.
  //   a [k], b [k, 16], c [16] in and out
  void (*chain_sm90)(const float* a, const float* b, std::int64_t k, float* c);
  void (*chain_sm90_fp8)(const float* a, const float* b, std::int64_t k, float* c);
  void (*chain_sm70)(const float* a, const float* b, std::int64_t k, float* c);
  // For tests: one row, operand_fp4's, over the first group of a weight's first panel.
  void (*group_fp4)(const PackedWeight& weight, const std::int16_t* codes, const double* scales,
                    const std::int32_t* exponents, float* c);
};

NIBBLE_ON_EACH_ISA(const FusedKernels& fused_kernels();
                   void operand_fp4(const std::uint8_t* codes, const std::uint8_t* scales,
                                    std::int64_t count, std::int16_t* to, double* to_scales,
                                    std::int32_t* exponents);
                   void fp4_rows(const Fp4Block& block, std::int64_t panel_begin,
                                 std::int64_t panel_end);
                   void bare_fp4(const PackedWeight& weight, const std::int16_t* codes,
                                 const double* scales, const std::int32_t* exponents, float* c);)

}  // namespace nibble::cpu
