// pack.h: launches of the ops that pack what they make. Contract: core/ops/ops.h Packed.
#pragma once

#include "backends/cuda/ops/rowwise.h"

namespace nibble::cuda {

struct PackArgs {
  ActivationFormat format;
  View codes, scales;  // scales.data null where the format has none
};

// y's type is what is rounded to; y.data null: nobody reads it. x of the norm is f32; x, z, gate and up of
// the others have y's type. y is not one of the inputs. No f16.
void rms_norm_pack(const Launch& to, const RmsNormArgs& args, const PackArgs& pack);
void add_rms_norm_pack(const Launch& to, const AddRmsNormArgs& args, const PackArgs& pack);
// At most kMostHeads groups a row.
constexpr int kMostHeads = 8192;
void gated_rms_norm_pack(const Launch& to, const GatedRmsNormArgs& args, const PackArgs& pack);
void swiglu_pack(const Launch& to, const SwiGluArgs& args, const PackArgs& pack);

}  // namespace nibble::cuda
