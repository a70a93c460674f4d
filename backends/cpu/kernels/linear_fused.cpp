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
static_assert(kFusedGroup % num::kSm90Order.group == 0 && kFusedGroup % num::kSm70Order.group == 0 &&
              kFusedGroup % num::kSm90Fp8Order.group == 0 && kSegment == num::kFp8Chain);

struct WeightBlock {
  alignas(64) float values[kBlockFloats];
  alignas(64) std::int16_t exponents[kBlockFloats];

  bool ordinary;

  // k0 .. k0 + count of a panel; returns the number of k with the zeros behind them.
  template <int MinExponent>
  NIBBLE_INLINE std::int64_t open(const PackedWeight& w, std::int64_t panel, std::int64_t k0,
                                  std::int64_t count, float unit) {
    decode_any(w, panel, k0, count, values);
    if (unit != 1.0f) {
      for (std::int64_t i = 0; i < count * kPanelRows; ++i) values[i] *= unit;
    }
    const std::int64_t padded = (count + kFusedGroup - 1) / kFusedGroup * kFusedGroup;
    for (std::int64_t i = count * kPanelRows; i < padded * kPanelRows; ++i) values[i] = 0.0f;
    ordinary = panel_exponents<MinExponent>(values, padded, exponents);
    return padded;
  }
};

template <int MinExponent>
NIBBLE_INLINE bool operand(const float* x, float scale, std::int64_t count, float* to,
                           std::int32_t* exponents) {
  std::int32_t others = 0;
  for (std::int64_t k = 0; k < count; ++k) {
    const float v = num::mul(x[k], scale);
    to[k] = v;
    exponents[k] = row_exponent<MinExponent>(v);
    others |= is_ordinary<MinExponent>(v) ? 0 : 1;
  }
  for (std::int64_t k = count; k % kFusedGroup != 0; ++k) {
    to[k] = 0.0f;
    exponents[k] = twice(kZeroExponent);
  }
  return others == 0;
}

bool operand_bf16(const float* x, std::int64_t count, float* to, std::int32_t* exponents) {
  return operand<num::kBf16MinExponent>(x, 1.0f, count, to, exponents);
}
bool operand_e4m3(const float* x, std::int64_t count, float* to, std::int32_t* exponents) {
  return operand<num::kE4m3MinExponent>(x, 1.0f, count, to, exponents);
}
bool operand_f16(const float* x, float scale, std::int64_t count, float* to, std::int32_t* exponents) {
  return operand<num::kF16MinExponent>(x, scale, count, to, exponents);
}

// Block k0 of `Rows` rows from r on.
template <int G, int F, int kMin, int Bits, int Rows>
__attribute__((noinline)) void row_chains(const FusedBlock& f, const WeightBlock& w, std::int64_t r,
                                          std::int64_t k0, std::int64_t count, float* sums) {
  const std::int64_t stride = f.linear.x_stride, at = r * stride + k0;
  bool ordinary = w.ordinary;
  for (int i = 0; i < Rows; ++i) ordinary &= f.ordinary[r + i] != 0;
  fused_chain<G, F, kMin, Bits, Rows>(f.linear.x + at, f.exponents + at, stride, w.values, w.exponents, count,
                                ordinary, sums + r * kPanelRows);
}

template <int G, int F, int kMin, int Bits = 24>
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
            w.open<kMin>(*b.weight, p, k0, end - k0 < kSegment ? end - k0 : kSegment, b.weight_unit);
        const TowardZero mode;
        std::int64_t r = 0;
        for (; r + 2 <= b.rows; r += 2) row_chains<G, F, kMin, Bits, 2>(f, w, r, k0, count, sums);
        if (r < b.rows) row_chains<G, F, kMin, Bits, 1>(f, w, r, k0, count, sums);
      }
      for (std::int64_t r = 0; r < b.rows; ++r) {
        float* total = totals + r * kPanelRows;
        store(total, add_segment(b, p, segment, r, load(sums + r * kPanelRows), load(total)));
      }
    }
    for (std::int64_t r = 0; r < b.rows; ++r) finish(b, p, r, load(totals + r * kPanelRows));
  }
}

template <int G, int F, int MinExponent, int Bits = 24>
void bare_chain(const float* a, const float* b, std::int64_t k, float* c) {
  WeightBlock w;
  std::int32_t exponents[kSegment];
  std::memcpy(w.values, b, static_cast<std::size_t>(k) * kPanelRows * sizeof(float));
  w.ordinary = panel_exponents<MinExponent>(w.values, k, w.exponents);
  for (std::int64_t i = 0; i < k; ++i) {
    exponents[i] = row_exponent<MinExponent>(a[i]);
    w.ordinary &= is_ordinary<MinExponent>(a[i]);
  }
  const TowardZero mode;
  fused_chain<G, F, MinExponent, Bits, 1>(a, exponents, 0, w.values, w.exponents, k, w.ordinary, c);
}

constexpr num::MatrixOrder k90 = num::kSm90Order, k90Fp8 = num::kSm90Fp8Order, k70 = num::kSm70Order;
constexpr FusedKernels kKernels{
    operand_bf16,
    operand_e4m3,
    operand_f16,
    operand_fp4,
    rows<k90.group, k90.fraction_bits, num::kBf16MinExponent>,
    rows<k90Fp8.group, k90Fp8.fraction_bits, num::kE4m3MinExponent, num::kFp8ResultBits>,
    rows<k70.group, k70.fraction_bits, num::kF16MinExponent>,
    fp4_rows,
    bare_chain<k90.group, k90.fraction_bits, num::kBf16MinExponent>,
    bare_chain<k90Fp8.group, k90Fp8.fraction_bits, num::kE4m3MinExponent, num::kFp8ResultBits>,
    bare_chain<k70.group, k70.fraction_bits, num::kF16MinExponent>,
    bare_fp4};

}  // namespace

const FusedKernels& fused_kernels() {
  return kKernels;
}

}  // namespace nibble::cpu::NIBBLE_ISA
