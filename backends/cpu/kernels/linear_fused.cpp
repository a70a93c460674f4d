// linear_fused.cpp: Linear as matrix units add it up.
//   map   panel = 16 outputs; 128 k of a panel are decoded once, with their exponents, into the
//         first-level cache (12 KiB, beside 16 KiB of rows) and serve all rows of the block,
//         two at a time
//   cost  about a tenth of the speed of a chain: six vector operations instead of one for each product
#include "backends/cpu/kernels/linear_fused.h"

#include "backends/cpu/kernels/fused_group.h"
#include "backends/cpu/kernels/linear_finish.h"
#include "backends/cpu/kernels/panel_block.h"
#include "core/numerics/matrix_order.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

constexpr int kBlockFloats = kSegment * kPanelRows;
static_assert(kFusedGroup % num::kSm90Order.group == 0 && kFusedGroup % num::kSm70Order.group == 0);

struct WeightBlock {
  alignas(64) float values[kBlockFloats];
  alignas(64) std::int16_t exponents[kBlockFloats];

  template <int MinExponent>
  NIBBLE_INLINE void measure(std::int64_t count) {
    if constexpr (MinExponent != num::kBf16MinExponent) {
      for (std::int64_t i = 0; i < count * kPanelRows; ++i) {
        exponents[i] = static_cast<std::int16_t>(exponent_of<MinExponent>(values[i]));
      }
      return;
    }
    // exponent_of for bf16, in 16-bit lanes: all that it looks at lies in a float's upper half
    for (std::int64_t i = 0; i < count * kPanelRows; ++i) {
      const std::uint32_t u = num::bit_cast<std::uint32_t>(values[i]) & 0x7FFFFFFFu;
      exponents[i] = static_cast<std::int16_t>(u >> 16);
    }
    for (std::int64_t i = 0; i < count * kPanelRows; ++i) {
      const std::int16_t h = exponents[i];
      std::int16_t e = static_cast<std::int16_t>((h >> 7) - 127);
      e = e < MinExponent ? std::int16_t{MinExponent} : e;
      e = h == 0 ? std::int16_t{kZeroExponent} : e;
      exponents[i] = h >= 0x7F80 ? std::int16_t{kHugeExponent} : e;
    }
  }

  // k0 .. k0 + count of a panel; returns the number of k with the zeros behind them.
  template <int MinExponent>
  NIBBLE_INLINE std::int64_t open(const PackedWeight& w, std::int64_t panel, std::int64_t k0,
                                  std::int64_t count) {
    decode_any(w, panel, k0, count, values);
    const std::int64_t padded = (count + kFusedGroup - 1) / kFusedGroup * kFusedGroup;
    for (std::int64_t i = count * kPanelRows; i < padded * kPanelRows; ++i) values[i] = 0.0f;
    measure<MinExponent>(padded);
    return padded;
  }
};

template <int MinExponent>
NIBBLE_INLINE void operand(const float* x, float scale, std::int64_t count, float* to,
                           std::int32_t* exponents) {
  for (std::int64_t k = 0; k < count; ++k) {
    const float v = num::mul(x[k], scale);
    to[k] = v;
    exponents[k] = exponent_pair(exponent_of<MinExponent>(v));
  }
  for (std::int64_t k = count; k % kFusedGroup != 0; ++k) {
    to[k] = 0.0f;
    exponents[k] = exponent_pair(kZeroExponent);
  }
}

void operand_bf16(const float* x, std::int64_t count, float* to, std::int32_t* exponents) {
  operand<num::kBf16MinExponent>(x, 1.0f, count, to, exponents);
}
void operand_f16(const float* x, float scale, std::int64_t count, float* to, std::int32_t* exponents) {
  operand<num::kF16MinExponent>(x, scale, count, to, exponents);
}

template <int G, int F, int kMin>
void rows(const FusedBlock& f, std::int64_t panel_begin, std::int64_t panel_end) {
  const LinearBlock& b = f.linear;
  const std::int64_t cols = b.weight->cols;
  const auto bytes = static_cast<std::size_t>(b.rows) * kPanelRows * sizeof(float);
  WeightBlock w;
  alignas(64) float totals[kFusedRows * kPanelRows], sums[kFusedRows * kPanelRows];
  for (std::int64_t p = panel_begin; p < panel_end; ++p) {
    std::memset(totals, 0, bytes);
    for (std::int64_t start = 0, segment = 0; start < cols; start += f.segment, ++segment) {
      const std::int64_t end = start + f.segment < cols ? start + f.segment : cols;
      std::memset(sums, 0, bytes);
      for (std::int64_t k0 = start; k0 < end; k0 += kSegment) {
        const std::int64_t count =
            w.open<kMin>(*b.weight, p, k0, end - k0 < kSegment ? end - k0 : kSegment);
        std::int64_t r = 0;
        for (; r + 2 <= b.rows; r += 2) {
          fused_chain<G, F, kMin, 2>(b.x + r * b.x_stride + k0, f.exponents + r * b.x_stride + k0,
                                     b.x_stride, w.values, w.exponents, count, sums + r * kPanelRows);
        }
        if (r < b.rows) {
          fused_chain<G, F, kMin, 1>(b.x + r * b.x_stride + k0, f.exponents + r * b.x_stride + k0,
                                     b.x_stride, w.values, w.exponents, count, sums + r * kPanelRows);
        }
      }
      for (std::int64_t r = 0; r < b.rows; ++r) {
        float* total = totals + r * kPanelRows;
        store(total, add_segment(b, p, segment, r, load(sums + r * kPanelRows), load(total)));
      }
    }
    for (std::int64_t r = 0; r < b.rows; ++r) finish(b, p, r, load(totals + r * kPanelRows));
  }
}

template <int G, int F, int MinExponent>
void bare_chain(const float* a, const float* b, std::int64_t k, float* c) {
  WeightBlock w;
  std::int32_t exponents[kSegment];
  std::memcpy(w.values, b, static_cast<std::size_t>(k) * kPanelRows * sizeof(float));
  w.measure<MinExponent>(k);
  for (std::int64_t i = 0; i < k; ++i) exponents[i] = exponent_pair(exponent_of<MinExponent>(a[i]));
  fused_chain<G, F, MinExponent, 1>(a, exponents, 0, w.values, w.exponents, k, c);
}

constexpr num::MatrixOrder k90 = num::kSm90Order, k70 = num::kSm70Order;
constexpr FusedKernels kKernels{
    operand_bf16,
    operand_f16,
    operand_fp4,
    rows<k90.group, k90.fraction_bits, num::kBf16MinExponent>,
    rows<k70.group, k70.fraction_bits, num::kF16MinExponent>,
    fp4_rows,
    bare_chain<k90.group, k90.fraction_bits, num::kBf16MinExponent>,
    bare_chain<k70.group, k70.fraction_bits, num::kF16MinExponent>,
    bare_fp4};

}  // namespace

const FusedKernels& fused_kernels() {
  return kKernels;
}

}  // namespace nibble::cpu::NIBBLE_ISA
