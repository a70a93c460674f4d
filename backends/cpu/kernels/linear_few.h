// linear_few.h: one to four rows. Weights go from memory through a decoder straight into the chains.
//   map   panel = 16 outputs; two segments of a panel at a time for one and two rows: a chain's fma
//         waits for the one before, and a panel alone has too few chains to hide that
//   cost  one pass over the weight bytes; 2 * rows flop for each weight
#pragma once

#include "backends/cpu/kernels/linear_finish.h"

namespace nibble::cpu::NIBBLE_ISA {

template <class AnyDecoder, int Rows, int Segments>
NIBBLE_INLINE void chains(const LinearBlock& b, const std::byte* panel, std::int64_t k0,
                          std::int64_t count, F32x16 (&sum)[Segments][Rows]) {
  AnyDecoder decoder[Segments];
  const float* x[Rows];
  for (int s = 0; s < Segments; ++s) decoder[s].open(*b.weight, panel, k0 + s * kSegment, count);
  for (int r = 0; r < Rows; ++r) x[r] = b.x + r * b.x_stride + k0;
  for (int s = 0; s < Segments; ++s) {
    for (int r = 0; r < Rows; ++r) sum[s][r] = zero();
  }
  const std::int64_t chunks = count / 4;
  for (std::int64_t c = 0; c < chunks; ++c) {
    for (int s = 0; s < Segments; ++s) {
      F32x16 w[4];
      decoder[s].prefetch(c, Segments);
      decoder[s].chunk(c, w);
      for (int j = 0; j < 4; ++j) {
        for (int r = 0; r < Rows; ++r) {
          sum[s][r] = fma(set1(x[r][s * kSegment + c * 4 + j]), w[j], sum[s][r]);
        }
      }
    }
  }
  for (std::int64_t k = chunks * 4; k < count; ++k) {
    for (int s = 0; s < Segments; ++s) {
      const F32x16 w = decoder[s].step(k);
      for (int r = 0; r < Rows; ++r) sum[s][r] = fma(set1(x[r][s * kSegment + k]), w, sum[s][r]);
    }
  }
}

template <class AnyDecoder, int Rows>
void panels(const LinearBlock& b, std::int64_t panel_begin, std::int64_t panel_end) {
  constexpr int kTogether = Rows <= 2 ? 2 : 1;
  const std::int64_t cols = b.weight->cols;
  for (std::int64_t p = panel_begin; p < panel_end; ++p) {
    const std::byte* panel = b.weight->codes + p * b.weight->panel_bytes;
    F32x16 total[Rows];
    for (int r = 0; r < Rows; ++r) total[r] = zero();
    std::int64_t k0 = 0;
    for (; k0 + kTogether * kSegment <= cols; k0 += kTogether * kSegment) {
      F32x16 sum[kTogether][Rows];
      chains<AnyDecoder, Rows, kTogether>(b, panel, k0, kSegment, sum);
      for (int s = 0; s < kTogether; ++s) {
        for (int r = 0; r < Rows; ++r) {
          total[r] = add_segment(b, p, k0 / kSegment + s, r, sum[s][r], total[r]);
        }
      }
    }
    for (; k0 < cols; k0 += kSegment) {
      const std::int64_t count = cols - k0 < kSegment ? cols - k0 : kSegment;
      F32x16 sum[1][Rows];
      chains<AnyDecoder, Rows, 1>(b, panel, k0, count, sum);
      for (int r = 0; r < Rows; ++r)
        total[r] = add_segment(b, p, k0 / kSegment, r, sum[0][r], total[r]);
    }
    for (int r = 0; r < Rows; ++r) finish(b, p, r, total[r]);
  }
}

template <class AnyDecoder>
void any_rows(const LinearBlock& b, std::int64_t panel_begin, std::int64_t panel_end) {
  static_assert(kFewRows == 4);
  switch (b.rows) {
    case 1:
      return panels<AnyDecoder, 1>(b, panel_begin, panel_end);
    case 2:
      return panels<AnyDecoder, 2>(b, panel_begin, panel_end);
    case 3:
      return panels<AnyDecoder, 3>(b, panel_begin, panel_end);
    default:
      return panels<AnyDecoder, 4>(b, panel_begin, panel_end);
  }
}

// With Decoder or RowDecoder.
template <template <WeightFormat> class AnyDecoder>
void few_rows_with(const LinearBlock& b, std::int64_t panel_begin, std::int64_t panel_end) {
  switch (b.weight->format) {
    case WeightFormat::f32:
      return any_rows<AnyDecoder<WeightFormat::f32>>(b, panel_begin, panel_end);
    case WeightFormat::f16:
      return any_rows<AnyDecoder<WeightFormat::f16>>(b, panel_begin, panel_end);
    case WeightFormat::bf16:
      return any_rows<AnyDecoder<WeightFormat::bf16>>(b, panel_begin, panel_end);
    case WeightFormat::fp8_e4m3:
      return any_rows<AnyDecoder<WeightFormat::fp8_e4m3>>(b, panel_begin, panel_end);
    case WeightFormat::nvfp4:
      return any_rows<AnyDecoder<WeightFormat::nvfp4>>(b, panel_begin, panel_end);
  }
}

}  // namespace nibble::cpu::NIBBLE_ISA
