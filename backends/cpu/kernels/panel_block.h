// panel_block.h: a block of a panel, up to 128 k, decoded to float32 operands [count, 16].
#pragma once

#include "backends/cpu/kernels/panel_decode.h"

namespace nibble::cpu::NIBBLE_ISA {

template <class AnyDecoder>
NIBBLE_INLINE void decode_with(const PackedWeight& w, std::int64_t panel, std::int64_t k0,
                               std::int64_t count, float* out) {
  AnyDecoder decoder;
  decoder.open(w, w.codes + panel * w.panel_bytes, k0, count);
  const std::int64_t chunks = count / 4;
  for (std::int64_t c = 0; c < chunks; ++c) {
    F32x16 four[4];
    decoder.prefetch(c, 1);
    decoder.chunk(c, four);
    for (int j = 0; j < 4; ++j) store(out + (c * 4 + j) * kPanelRows, four[j]);
  }
  for (std::int64_t k = chunks * 4; k < count; ++k) store(out + k * kPanelRows, decoder.step(k));
}

template <WeightFormat F>
NIBBLE_INLINE void decode_block(const PackedWeight& w, std::int64_t panel, std::int64_t k0,
                                std::int64_t count, float* out) {
  decode_with<Decoder<F>>(w, panel, k0, count, out);
}

// decode_any for Layout::rows; row_block.cpp.
void decode_rows(const PackedWeight& w, std::int64_t panel, std::int64_t k0, std::int64_t count, float* out);

// k0 is a multiple of 64.
inline void decode_any(const PackedWeight& w, std::int64_t panel, std::int64_t k0,
                       std::int64_t count, float* out) {
  if (w.layout == Layout::rows) return decode_rows(w, panel, k0, count, out);
  switch (w.format) {
    case WeightFormat::f32:
      return decode_block<WeightFormat::f32>(w, panel, k0, count, out);
    case WeightFormat::f16:
      return decode_block<WeightFormat::f16>(w, panel, k0, count, out);
    case WeightFormat::bf16:
      return decode_block<WeightFormat::bf16>(w, panel, k0, count, out);
    case WeightFormat::fp8_e4m3:
      return decode_block<WeightFormat::fp8_e4m3>(w, panel, k0, count, out);
    case WeightFormat::nvfp4:
      return decode_block<WeightFormat::nvfp4>(w, panel, k0, count, out);
  }
}

}  // namespace nibble::cpu::NIBBLE_ISA
