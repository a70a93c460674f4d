// eights.h: bf16 rows whose columns come in eights at aligned addresses, the shapes that models have: SwiGlu,
// GatedRmsNorm and RmsNorm, with codes behind them or without, and Quantize. Same bytes as elementwise.cu, norms.cu,
// pack.cu and quantize.cu, which serve everything else.
#pragma once

#include "backends/cuda/ops/pack.h"

namespace nibble::cuda {

// Null: it serves, and is launched unless one only asks. Else nothing is, and this is why it does not serve. `pack`:
// null, or the codes that are wanted; y.data may be null then.
enum class Serve { launch, ask };
const char* swiglu_eights(const Launch& to, const SwiGluArgs& args, const PackArgs* pack, Serve what = Serve::launch);
const char* gated_rms_norm_eights(const Launch& to, const GatedRmsNormArgs& args, const PackArgs* pack, Serve what = Serve::launch);
const char* rms_norm_eights(const Launch& to, const RmsNormArgs& args, const PackArgs* pack, Serve what = Serve::launch);
const char* add_rms_norm_eights(const Launch& to, const AddRmsNormArgs& args, const PackArgs* pack, Serve what = Serve::launch);
const char* quantize_eights(const Launch& to, const QuantizeArgs& args, Serve what = Serve::launch);

}  // namespace nibble::cuda
