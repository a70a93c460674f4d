// fuse.h: rewrites of a traced program that let one op do the work of two and write the same bytes.
#pragma once

namespace nibble {

struct Program;

// Which rewrites; a backend says which of the fused ops it has.
struct Fusions {
  bool rms_norm_pack = false, gated_rms_norm_pack = false, swiglu_pack = false;
  static constexpr Fusions all() { return {true, true, true}; }
};

// A Quantize and the op that makes its x become one Packed. Where others read x too, it is still
// written. To be called before plan().
void fuse(Program& program, const Fusions& which);

}  // namespace nibble
