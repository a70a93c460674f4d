// reencode.h: NVFP4 matrices as FP8 ones with one tensor scale, for mode a8; formula: core/numerics/fp8_reencode.h.
#pragma once

#include "core/checkpoint/weight.h"

namespace nibble {

// The FP8 matrix that a backend gets in place of `nvfp4`: made when it asks, then Error(bad_file) where a code or block
// scale is not finite, as it would be for `nvfp4` itself. Its number of scales is known, their values are not yet.
Weight reencoded_to_fp8(const Weight& nvfp4);

// What that loses, over all elements, each with its matrix's or row's scale.
struct ReencodeLoss {
  int exponent = 0;          // the tensor scale is 6 * 2^exponent
  double error2 = 0, size2 = 0;  // sums of squares: of the differences, of the NVFP4 values
  std::int64_t inexact = 0;  // elements that changed
  double relative_l2() const;
};
// Reads the whole matrix. Throws as above.
ReencodeLoss reencode_loss(const Weight& nvfp4);

}  // namespace nibble
