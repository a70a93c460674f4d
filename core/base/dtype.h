// dtype.h: element types of tensors in files and buffers.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace nibble {

enum class DType : std::uint8_t {
  f64, f32, f16, bf16, f8_e4m3, f8_e5m2, f8_e8m0, f4_e2m1, f6_e2m3, f6_e3m2,
  i64, i32, i16, i8, u64, u32, u16, u8, boolean, c64,
};

const char* dtype_name(DType t);                              // safetensors' name: "F32", "F8_E4M3", ...
std::optional<DType> dtype_from_name(std::string_view name);  // exact spelling
int dtype_bits(DType t);                                      // 4 for f4_e2m1, 6 for f6_*

}  // namespace nibble
