// arch_path.h: whose arithmetic and kernels a backend runs, whatever its card is.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/dtype.h"

namespace nibble::cuda {

enum class ArchPath : std::uint8_t { sm70, sm90, sm120 };

const char* arch_path_name(ArchPath path);  // "sm70": the profile's name too
// Empty: the card's own, sm70 on compute capability 7.0, sm120 on 12.0, else sm90. Throws
// Error(invalid_argument).
ArchPath arch_path_from(const std::string& name, int major, int minor);
// Type of the buffers between ops, and of what a sequence's state keeps of them.
constexpr DType operand_of(ArchPath path) {
  return path == ArchPath::sm70 ? DType::f16 : DType::bf16;
}
// What block scales of NVFP4 weights are kept as: weight_decode.cuh; f16: weight_f16.cuh.
enum class ScaleCode : std::uint8_t { e4m3, e5m3, f16 };
constexpr ScaleCode scale_code_of(ArchPath path) {
  return path == ArchPath::sm90 ? ScaleCode::e5m3 : path == ArchPath::sm70 ? ScaleCode::f16 : ScaleCode::e4m3;
}
// Whose fragments the codes of a weight lie in: of four m16n8k16; NVFP4, of one m16n8k64; FP8, of two m64n8k32. The
// latter two are for the units that multiply code by code, whose order of sums linear layers then have.
enum class CodeOrder : std::uint8_t { k16, k64, k32 };
constexpr DType state_type_of(DType operand) {
  return operand == DType::f16 ? DType::f32 : operand;
}

}  // namespace nibble::cuda
