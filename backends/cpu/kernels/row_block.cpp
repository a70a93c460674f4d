// row_block.cpp: blocks of a weight that lies row by row, in one copy for all loops that go through panel_block.h.
#include "backends/cpu/kernels/panel_block.h"
#include "backends/cpu/kernels/row_decode.h"

namespace nibble::cpu::NIBBLE_ISA {

void decode_rows(const PackedWeight& w, std::int64_t panel, std::int64_t k0, std::int64_t count, float* out) {
  switch (w.format) {
    case WeightFormat::f32:
      return decode_with<RowDecoder<WeightFormat::f32>>(w, panel, k0, count, out);
    case WeightFormat::f16:
      return decode_with<RowDecoder<WeightFormat::f16>>(w, panel, k0, count, out);
    case WeightFormat::bf16:
      return decode_with<RowDecoder<WeightFormat::bf16>>(w, panel, k0, count, out);
    case WeightFormat::fp8_e4m3:
      return decode_with<RowDecoder<WeightFormat::fp8_e4m3>>(w, panel, k0, count, out);
    case WeightFormat::nvfp4:
      return decode_with<RowDecoder<WeightFormat::nvfp4>>(w, panel, k0, count, out);
  }
}

}  // namespace nibble::cpu::NIBBLE_ISA
