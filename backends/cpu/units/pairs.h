// pairs.h: panels of a packed weight as pairs of bf16, sixteen outputs in a vector; for the bf16 units (AVX-512).
//
// Operands of the contract are exact in bf16: the upper half of the float32 that the decoder makes.
#pragma once

#include "backends/cpu/kernels/row_decode.h"
#include "core/numerics/bf16_order.h"

namespace nibble::cpu::NIBBLE_ISA {

NIBBLE_INLINE __m512i pair(F32x16 low, F32x16 high) {
  // high's upper half where the mask has ones, else low's, moved down
  return _mm512_ternarylogic_epi32(_mm512_set1_epi32(static_cast<int>(0xFFFF0000u)), _mm512_castps_si512(high.v),
                                   _mm512_srli_epi32(_mm512_castps_si512(low.v), 16), 0xCA);
}

// four(to, w) writes k-steps w[0..3] as two vectors at to and to + step2; `count` k from k0 (a multiple of 64), with
// zeros up to whole blocks.
template <class AnyDecoder, class Four>
NIBBLE_INLINE void decode_pairs(const PackedWeight& w, std::int64_t panel, std::int64_t k0, std::int64_t count,
                                const Four& four) {
  for (std::int64_t begin = 0; begin < count; begin += kSegment) {
    const std::int64_t some = count - begin < kSegment ? count - begin : kSegment;
    AnyDecoder decoder;
    decoder.open(w, w.codes + panel * w.panel_bytes, k0 + begin, some);
    std::int64_t k = 0;
    for (; k + 4 <= some; k += 4) {
      F32x16 steps[4];
      decoder.prefetch(k / 4, 1);
      decoder.chunk(k / 4, steps);
      four(begin + k, steps);
    }
    const std::int64_t padded = (some + num::kBf16Block - 1) / num::kBf16Block * num::kBf16Block;
    for (; k < padded; k += 4) {
      F32x16 steps[4];
      for (int j = 0; j < 4; ++j) steps[j] = k + j < some ? decoder.step(k + j) : zero();
      four(begin + k, steps);
    }
  }
}

template <template <WeightFormat> class AnyDecoder, class Four>
void decode_format_pairs(const PackedWeight& w, std::int64_t panel, std::int64_t k0, std::int64_t count,
                         const Four& four) {
  switch (w.format) {
    case WeightFormat::nvfp4:
      return decode_pairs<AnyDecoder<WeightFormat::nvfp4>>(w, panel, k0, count, four);
    case WeightFormat::fp8_e4m3:
      return decode_pairs<AnyDecoder<WeightFormat::fp8_e4m3>>(w, panel, k0, count, four);
    case WeightFormat::bf16:
      return decode_pairs<AnyDecoder<WeightFormat::bf16>>(w, panel, k0, count, four);
    case WeightFormat::f16:  // are bf16 here (WeightOperand)
    case WeightFormat::f32:
      break;
  }
}

template <class Four>
void decode_any_pairs(const PackedWeight& w, std::int64_t panel, std::int64_t k0, std::int64_t count, const Four& four) {
  if (w.layout == Layout::rows) return decode_format_pairs<RowDecoder>(w, panel, k0, count, four);
  decode_format_pairs<Decoder>(w, panel, k0, count, four);
}

}  // namespace nibble::cpu::NIBBLE_ISA
